"""Rows that cannot be read: a job's is due again in a minute, a task's is dead and stays."""

from __future__ import annotations

import sqlalchemy as sa

from slotwise.decide.going_back import UNREADABLE
from slotwise.decide.tuning import UNREADABLE_PAUSE
from slotwise.model import records
from slotwise.model.records import EARLIEST, FOREVER, Claim, Key
from slotwise.model.vocabulary import Kind, Reason, Release, RowState
from slotwise.store.dialects.conditions import of_key
from slotwise.store.dialects.port import Transaction
from slotwise.store.dialects.row_values import RELEASED, Values
from slotwise.store.schema.rows import LAST_VERSION


def quarantine(at: Transaction, key: Key, error: str) -> None:
    """Postpone a waiting row that no claim can take, or end it; its ``last_error`` says why."""
    tasks = at.dialect.tables.tasks
    mine = [*of_key(tasks.c, key), *at.dialect.conditions.waiting()]
    values = _quarantined(at, error)
    statement = tasks.update().where(*mine).ordered_values(*values.items())
    at.connection.execute(statement)


def quarantine_held(
    at: Transaction, claim: Claim, outcome: records.AttemptOutcome, error: str
) -> str | None:
    """As ``quarantine``, for a held row, under its claim's fence; return its state, None if the
    claim was lost.

    The ledger gets the handler's outcome. Without one, the next claim finds an orphan there.
    """
    tables = at.dialect.tables
    row = claim.row
    mine = at.dialect.conditions.held(claim)
    if isinstance(outcome, records.Died):
        beat = tables.tasks.c.last_heartbeat
        mine.append(beat.is_not_distinct_from(row.last_heartbeat))
    values = _quarantined(at, error) | RELEASED
    values["version"] = min(row.version, LAST_VERSION + 1) + 1
    statement = tables.tasks.update().where(*mine).ordered_values(*values.items())
    written = at.dialect.reading(statement, tables.tasks.c.state)(at.connection)
    if not written:
        return None
    ends = isinstance(outcome, records.Succeeded | records.Failed | records.Cancelled)
    if ends and row.ledger_key is not None and not getattr(outcome, "promised", False):
        ended = tables.slots.update().where(*at.dialect.conditions.open_entry(row))
        reason = Reason.UNREADABLE
        ended = ended.values(outcome=outcome.name, reason=reason, finished=at.now)
        at.connection.execute(ended)
    return written[0][0] or Release.POSTPONED


def _quarantined(at: Transaction, error: str) -> Values:
    """An error never ends a job. MySQL assigns from left to right: what reads the due time comes
    before it.
    """
    tasks = at.dialect.tables.tasks.c
    due = tasks.execution_time
    goes_on = tasks.kind != Kind.TASK
    # In a table of db-scheduler's it may be any.
    is_finite = due.between(EARLIEST, FOREVER)
    again = sa.literal(at.now + UNREADABLE_PAUSE, due.type)
    return {
        "state": sa.case((goes_on, tasks.state), else_=RowState.DEAD.value),
        "parked_due": sa.case((goes_on | ~is_finite, sa.null()), else_=due),
        "execution_time": sa.case(
            (goes_on, again), else_=sa.literal(FOREVER, due.type)
        ),
        "last_error": f"{UNREADABLE}{error}".replace("\0", "\\0"),
    }
