"""The short way of the usual end: slots that were on time and succeeded, all of a batch in one statement.

Nothing is read first. What follows was decided from the claim (``onward``), and the statement takes only rows that are
still as that decision saw them: under this claim's key, version and holder; for this very slot and text; asked nothing
meanwhile (no pause, deletion, cancellation, wish, slot left out); open in the ledger under this token; and
with the next slot still to come. Of those it writes row and ledger together, or neither.

Races. A row that somebody has locked, or has changed since the statement began (a heartbeat, an order, a deploy, a
reaper), is left, and so is one whose ledger row a user's guard has changed: the settlement looks at each of those
under its lock, and says what becomes of it. A ledger row that changes after its row was found makes all of it be taken
back: the two never part.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from slotwise.decide.fast_finish import FastFinish, onward
from slotwise.model.records import SUCCEEDED, AttemptOutcome, Claim, Fence
from slotwise.store.connect.database import Database, commit_surely
from slotwise.store.connect.database_errors import is_about_a_row
from slotwise.store.dialects.port import Dialect, Parted

Usual: TypeAlias = "tuple[Claim, FastFinish]"


def usual(claim: Claim, outcome: AttemptOutcome) -> FastFinish | None:
    """What follows if nothing is out of the ordinary; None: that is for the settlement to say."""
    row = claim.row
    if not row.is_plan or row.slot is None or row.attempt != 1:
        return None
    if row.origin is not None or row.catch_up_until is not None or row.unheld_since is not None:
        return None  # it catches up, or was queued: what follows is looked at
    if outcome is SUCCEEDED or outcome == SUCCEEDED:
        with suppress(Exception):  # whatever it is, the settlement meets it again, and tells
            return onward(row.schedule or "-", row.slot)
    return None


def advance(database: Database, dialect: Dialect, endings: Sequence[Usual]) -> set[Fence]:
    """Let these plan rows go on to their next slots; those that did. The others are as they were.

    Raises the driver's error where a ledger row stays locked beyond the lock timeout; nothing is written then.
    """

    def work(connection: sa.Connection) -> tuple[str | None, set[Fence]]:
        return dialect.advance(connection, endings)

    try:
        return commit_surely(database, dialect, work)
    except Parted:
        return set()
    except DBAPIError as error:
        if not is_about_a_row(error):
            raise
        return set()
