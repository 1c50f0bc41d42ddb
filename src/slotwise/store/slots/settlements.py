"""Settlements: what becomes of held rows, written under the fence by their holder, or by a reaper.

**The usual end.** Slots that were on time and succeeded go on in one statement for a batch,
without a look before. What follows was decided from the claim (``onward``), and the statement
takes only rows that are still as that decision saw them: under this claim's key, version and
holder; for this slot and text; with nothing requested meanwhile; open in the ledger under this
token; and with the next slot still to come. It writes row and ledger together, or neither.

Races. A row that is locked, or has changed since the statement began, or whose ledger row a user's
guard has changed, is left: the long way looks at it under its lock. A ledger row that changes
after its row was found takes all back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache, partial
from typing import TYPE_CHECKING, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from slotwise.jobs.definition import Definition
from slotwise.model import records
from slotwise.model.records import Claim, Fence, Record, Row, Transition
from slotwise.model.vocabulary import Outcome
from slotwise.schedules import parse_schedule
from slotwise.schedules.base import due_at, slot_after
from slotwise.store.connect.database import commit_surely
from slotwise.store.connect.database_errors import (
    describe_error,
    is_about_a_row,
    is_locked,
)
from slotwise.store.dialects.port import Parted
from slotwise.store.dialects.quarantine import quarantine_held
from slotwise.store.schema.rows import Change, claim_of
from slotwise.store.slots.detached import freed, tell_plan_rows
from slotwise.store.slots.settlement_hooks import SettlementHooks
from slotwise.store.slots.settlement_writer import (
    EndedAgo,
    Endings,
    SettlementWriter,
    Written,
    has_follow_ups,
    just_now,
)

if TYPE_CHECKING:
    from slotwise.store.slots.store import Store

T = TypeVar("T")

#: Looked up once: Python 3.11 takes long to find a member, and this is asked for each execution.
_SUCCEEDED = Outcome.SUCCEEDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The result for one claim: its transition, or an error; neither if the claim was lost."""

    claim: Claim
    transition: Transition | None = None
    error: Exception | None = None

    @property
    def reason(self) -> str | None:
        """The reason in the ledger: ``retry`` or ``rerun`` if another attempt follows."""
        done = self.transition
        record = (done.record or done.ended) if done is not None else None
        return record.reason if record is not None else None

    @property
    def is_usual(self) -> bool:
        """Whether the slot or the task succeeded, and no slot was skipped."""
        done = self.transition
        return done is not None and done.label == _SUCCEEDED and not done.gaps


LOCKED = TimeoutError(
    "another transaction keeps its row, or its slot in the ledger, locked; see pg_stat_activity"
)


class Settlements:
    """Releases held rows, and writes how their slots and tasks have ended."""

    def __init__(self, store: Store) -> None:
        self.database = store.database
        self.dialect = store.dialect
        self.transaction = store.transaction
        self._transact = store.transact
        self._warnings = store.warnings
        self._full = store.gates.full
        self.hooks = SettlementHooks()
        self._writer = SettlementWriter(store)
        names = (name for name, found in store.definitions.items() if is_usual(found))
        self._usual = frozenset(names if self.dialect.has_fast_finish else ())

    def finish(self, claims: Sequence[Claim]) -> bool:
        """Delete one-time tasks that succeeded: all of them, in one statement, or none (False).

        Then some are lost, locked or asked to stop: ``settle`` decides about each. Tasks with a
        hook are for ``settle`` alone.
        """

        def work(connection: sa.Connection) -> tuple[str | None, bool]:
            transaction_id, count = self.dialect.finish(connection, claims)
            if count != len(claims):
                raise Parted
            return transaction_id, True

        try:
            is_done = self._at_once(work) or False
        except DBAPIError as error:
            if not is_locked(error):
                raise
            return False
        if self._full.until:
            self._full.ended(claims)
        return is_done

    def _at_once(
        self, work: Callable[[sa.Connection], tuple[str | None, T]]
    ) -> T | None:
        """Do this work; None, with nothing written, if it fails because of a row."""
        try:
            return commit_surely(self.database, self.dialect.committed, work)
        except Parted:
            return None
        except DBAPIError as error:
            if not is_about_a_row(error):
                raise
            return None

    def settle(
        self, endings: Endings, *, wait: bool = True, ended_ago: EndedAgo = just_now
    ) -> list[Settlement]:
        """Write these outcomes, each under its claim's fence; find a bad one by halving its batch.

        ``ended_ago`` is called right before they are sent. With ``wait`` this waits for locked
        rows once, up to the lock timeout. Rows that stay locked are returned with an error.
        """
        unique = {claim.fence: (claim, outcome) for claim, outcome in endings}
        done, wait = self._advance_unless_locked(list(unique.values()), wait=wait)
        rest = [ending for fence, ending in unique.items() if fence not in done]
        # Those with follow-ups come last: another transaction may hold an id that they write.
        for follows in (False, True):
            if part := [
                ending for ending in rest if has_follow_ups(ending[1]) is follows
            ]:
                settled = self._by_halves(
                    part,
                    partial(self._settle, ended_ago=ended_ago, wait=wait),
                    is_first=not done,
                )
                done.update(
                    (settlement.claim.fence, settlement) for settlement in settled
                )
        if self._full.until:
            self._full.ended(claim for claim, _ in endings)
        return [done[claim.fence] for claim, _ in endings]

    def _advance_unless_locked(
        self, endings: Endings, *, wait: bool
    ) -> tuple[dict[Fence, Settlement], bool]:
        """Return also whether the others may wait for locks: once this has waited, they may not."""
        if not wait:
            return {}, False
        try:
            return self._advance(endings), True
        except DBAPIError as error:
            if not is_locked(error):
                raise
            return {}, False

    def _advance(self, endings: Endings) -> dict[Fence, Settlement]:
        """Settle those that end as most do, in one statement."""
        found = [
            (claim, following)
            for claim, outcome in endings
            if claim.row.task_name in self._usual
            and claim.row.task_name not in self.hooks.names
            and (following := usual(claim, outcome)) is not None
        ]
        gone = (
            self._at_once(lambda connection: self.dialect.advance(connection, found))
            if found
            else None
        ) or ()
        return {
            one.fence: Settlement(claim=one, transition=done)
            for one, done in found
            if one.fence in gone
        }

    def _by_halves(
        self,
        endings: Endings,
        end: Callable[[Endings], list[Settlement]],
        *,
        is_first: bool = True,
    ) -> list[Settlement]:
        """Call ``end`` with them; if a row makes that fail, with each half, until that row is
        alone.

        Raise only if nothing is settled yet (``is_first``): what is settled must be returned.
        """
        try:
            return end(endings)
        except Exception as error:
            held_up = is_locked(error) and has_follow_ups(endings[0][1])
            if not is_about_a_row(error) and not held_up:
                if is_first:
                    raise
                return [Settlement(claim=claim, error=error) for claim, _ in endings]
            if len(endings) == 1:
                claim, outcome = endings[0]
                return [
                    Settlement(claim=claim, error=LOCKED)
                    if held_up
                    else self._settle_alone(claim, outcome, error)
                ]
        middle = len(endings) // 2
        settled = self._by_halves(endings[:middle], end, is_first=is_first)
        return settled + self._by_halves(endings[middle:], end, is_first=False)

    def _settle_alone(
        self, claim: Claim, outcome: records.AttemptOutcome, error: Exception
    ) -> Settlement:
        """Settle one bad outcome in plainer forms; quarantine its row if none can be written."""
        why = f"{outcome.name}, which cannot be written: {describe_error(error)}"
        for plain in plainer(outcome, why):
            try:
                return self._settle([(claim, plain)], just_now, wait=False)[0]
            except Exception as second:
                if not is_about_a_row(second):
                    return Settlement(claim=claim, error=error)
        self._warnings.quarantined([claim.key], why, logging.ERROR)
        try:
            label = self._quarantine(claim, outcome, error)
        except SQLAlchemyError:
            return Settlement(claim=claim, error=error)
        done = Transition(label=label, row={"last_error": why}) if label else None
        return Settlement(claim=claim, transition=done)

    def _quarantine(
        self, claim: Claim, outcome: records.AttemptOutcome, error: Exception
    ) -> str | None:
        """Return the state of the row; None if the claim was lost."""
        with self._transact() as at:
            label = quarantine_held(at, claim, outcome, describe_error(error))
            if label is not None and claim.row.has_slot:
                freed(at, claim.row, removed=False)
        return label

    def _settle(
        self, endings: Endings, ended_ago: EndedAgo, *, wait: bool
    ) -> list[Settlement]:
        try:
            changes = self._end(endings, ended_ago, wait=wait)
        except DBAPIError as error:
            if not wait or not is_locked(error):
                raise
            return self._settle(endings, ended_ago, wait=False)
        done = {change.held.row.fence: change.transition for change in changes}
        missing = [claim for claim, _ in endings if claim.fence not in done]
        left = {} if wait else self._still_held(missing)
        return [
            Settlement(
                claim=one, transition=done.get(one.fence), error=left.get(one.fence)
            )
            for one, _ in endings
        ]

    def _still_held(self, skipped: Sequence[Claim]) -> Mapping[Fence, Exception]:
        """Return those of these claims that are not lost: their rows are locked.

        The others of their batch are settled already, so this raises nothing.
        """
        if not skipped:
            return {}
        try:
            with self.transaction() as connection:
                return dict.fromkeys(
                    self.dialect.still_held(connection, skipped), LOCKED
                )
        except SQLAlchemyError as error:
            return {claim.fence: error for claim in skipped}

    def take_over(self, silent: Sequence[Row]) -> list[Settlement]:
        """Release rows whose holder is dead. Skip locked rows, and those that were renewed
        meanwhile.
        """

        def end(endings: Endings) -> list[Settlement]:
            claims = {claim.fence: claim for claim, _ in endings}
            changes = self._end(endings, wait=False)
            return [
                Settlement(claim=claims[one.held.row.fence], transition=one.transition)
                for one in changes
            ]

        taken = self._by_halves(
            [(claim_of(row), records.Died()) for row in silent], end
        )
        self._full.ended(settlement.claim for settlement in taken)
        return taken

    def _end(
        self, endings: Endings, ended_ago: EndedAgo = just_now, *, wait: bool
    ) -> Sequence[Change]:
        """Release the rows that are still held under these claims; of dead holders not those that
        were renewed.
        """

        def work(connection: sa.Connection) -> tuple[str | None, Written]:
            written = self._writer.write(
                connection, endings, ended_ago, self.hooks, wait=wait
            )
            return written.transaction_id, written

        written = commit_surely(self.database, self.dialect.committed, work)
        self.database.wake_ups.tell(*written.words)
        tell_plan_rows(self.database, self.dialect, written.changes, wait=wait)
        return written.changes


def plainer(
    outcome: records.AttemptOutcome, why: str
) -> Iterator[records.AttemptOutcome]:
    """Yield the outcome in ASCII, and then one that only says that the outcome could not be
    written.
    """
    if isinstance(outcome, records.Failed) and not outcome.error.isascii():
        yield replace(
            outcome, error=outcome.error.encode("ascii", "backslashreplace").decode()
        )
    if isinstance(outcome, records.Failed | records.Snoozed | records.Cancelled):
        yield records.Failed(why, final=True)


# -- the usual end --------------------------------------------------------------------------------


def usual(claim: Claim, outcome: records.AttemptOutcome) -> Transition | None:
    """What follows if nothing is out of the ordinary; None: that is for the settlement to say."""
    row = claim.row
    if (
        not row.is_plan
        or row.slot is None
        or row.slot != row.watermark
        or row.attempt != 1
    ):
        return None
    if row.catch_up_until is not None or row.unheld_since is not None:
        return None  # it catches up slot by slot, or was queued: what follows is looked at
    if outcome is records.SUCCEEDED or outcome == records.SUCCEEDED:
        with suppress(
            Exception
        ):  # whatever it is, the settlement meets it again, and tells
            return onward(row.schedule or "-", row.slot)
    return None


def is_usual(definition: Definition) -> bool:
    """Whether nothing that the job declares has a say in how a slot ends that was on time and
    succeeded.
    """
    return (
        definition.min_interval is None
        and definition.record == "none"
        and definition.result_retention is None
    )


@lru_cache(maxsize=4096)
def onward(text: str, slot: datetime) -> Transition | None:
    """Return what ``at_finish`` decides for a slot that was on time and succeeded before the next
    one came.

    None where more counts: the end of the run, a text that becomes a simpler one, or no next slot.
    Raise InvalidSchedule.
    """
    schedule = parse_schedule(text)
    following = schedule.next_after(slot)
    if following is None or schedule.from_end or str(schedule.settled(slot)) != text:
        return None
    due = due_at(schedule, following)
    next_slot = slot_after(schedule, following)
    columns = {"execution_time": due, "slot": following, "next_slot": next_slot}
    return Transition(
        label=_SUCCEEDED, row=columns, record=Record(outcome=_SUCCEEDED, attempts=1)
    )
