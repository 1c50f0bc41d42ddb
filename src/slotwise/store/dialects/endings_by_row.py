"""Endings, said so that any SQL database understands them: lock what is held, let it go, tell the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from slotwise.decide import UNREADABLE, UNREADABLE_PAUSE
from slotwise.decide.fast_finish import FastFinish
from slotwise.model.records import (
    FOREVER,
    AttemptOutcome,
    Cancelled,
    Claim,
    Died,
    Failed,
    Fence,
    Gap,
    Key,
    LedgerEntry,
    LedgerKey,
    Row,
    Succeeded,
)
from slotwise.model.vocabulary import PLANNED, Outcome, Reason, Release, State
from slotwise.store.dialects.row_by_row import RowByRow
from slotwise.store.schema.rows import CHANGED_COLUMNS, LAST_TOKEN, NO_TOKEN, Change, Held, ledger_instance, row_of

#: Columns of a held plan row that are empty as long as its slot is on time, and nobody has asked anything of it.
UNASKED = ("plan_instance", "origin", "catch_up_until", "state", "cancel_requested", "wanted_due", "parked_due")
#: The ledger row of a slot that succeeded at its first attempt.
ENDED = {"outcome": Outcome.SUCCEEDED, "reason": None, "error": None, "attempts": 1}


class Parted(Exception):
    """A row went on without its ledger row: nothing of that may be committed."""


class EndingsByRow(RowByRow):
    """Lets held rows go, each by a statement of its own."""

    def _held(self, claim: Claim) -> list[sa.ColumnElement[bool]]:
        """The row is still held under this claim."""
        return [*self._under(claim), self.tables.tasks.c.picked]

    def finish(self, connection: sa.Connection, claims: Sequence[Claim]) -> tuple[str | None, int]:
        """Delete the rows of one-time tasks that succeeded, where nothing else was asked of them meanwhile.

        The transaction's id, and how many rows there were. Waits for locks.
        """
        tasks, count = self.tables.tasks, 0
        for claim in claims:
            unasked = (tasks.c.state.is_(None), tasks.c.wanted_due.is_(None), tasks.c.cancel_requested.is_(None))
            gone = tasks.delete().where(*self._held(claim), *unasked)
            count += connection.execute(gone).rowcount
        return None, count

    def advance(
        self, connection: sa.Connection, endings: Sequence[tuple[Claim, FastFinish]]
    ) -> tuple[str | None, set[Fence]]:
        """Let go of plan rows whose slots were on time and succeeded, where nothing else was asked of them meanwhile.

        The transaction's id, and which those are; the others stay as they are. Waits for no row, though for its ledger
        row. Raises Parted if a row went on and its ledger row did not.
        """
        now = self.now(connection)
        return None, {claim.fence for claim, following in endings if self._advance(connection, claim, following, now)}

    def _advance(self, connection: sa.Connection, claim: Claim, following: FastFinish, now: datetime) -> bool:
        tasks, slots, key = self.tables.tasks, self.tables.slots, claim.row.ledger_key
        if key is None or following.has_come(now):
            return False
        entry = self._own_entry(claim, key)
        moved = {"execution_time": following.due, "slot": following.slot, "next_slot": following.next_slot}
        release = (
            tasks.update()
            .where(*self._as_claimed(claim, key), sa.exists().where(*entry))
            .values(
                **moved, picked=False, picked_by=None, last_heartbeat=None, lease=None, version=tasks.c.version + 1,
                attempt=0, consecutive_failures=0, last_success=now, last_error=None,
            )
        )  # fmt: skip
        if not connection.execute(release).rowcount:
            return False
        connection.execute(slots.update().where(*entry).values(**ENDED, finished=now))
        return True

    def _as_claimed(self, claim: Claim, key: LedgerKey) -> list[sa.ColumnElement[bool]]:
        """The plan row is still held under this claim, for a slot that was on time, and nobody has asked for more."""
        tasks = self.tables.tasks
        return [
            *self._held(claim), *(tasks.c[name].is_(None) for name in UNASKED),
            tasks.c.slot == key.slot, tasks.c.watermark == key.slot, tasks.c.schedule == claim.row.schedule,
            tasks.c.attempt == 1, tasks.c.lost_count == 0, tasks.c.collapsed == 0,
        ]  # fmt: skip

    def _own_entry(self, claim: Claim, key: LedgerKey) -> list[sa.ColumnElement[bool]]:
        """The ledger row is open, and of this claim."""
        slots = self.tables.slots
        at = self._at(key)
        return [*at, slots.c.token == claim.token, slots.c.outcome == Outcome.RUNNING, slots.c.finished.is_(None)]

    def quarantine(self, connection: sa.Connection, key: Key, error: str) -> None:
        """Put off a waiting row, unread, that no claim can take; it says why."""
        tasks = self.tables.tasks
        connection.execute(
            tasks.update()
            .where(tasks.c.task_name == key.task_name, tasks.c.task_instance == key.task_instance)
            .where(~tasks.c.picked, tasks.c.state.is_(None))
            .values(**self._aside(connection, error))
        )

    def _aside(self, connection: sa.Connection, error: str) -> dict[str, Any]:
        """A plan row comes up again in a minute: a job never ends by a mistake. Any other is dead, and stays."""
        tasks = self.tables.tasks
        is_plan = tasks.c.schedule.is_not(None)
        again = sa.literal(self.now(connection) + UNREADABLE_PAUSE, tasks.c.execution_time.type)
        has_token = tasks.c.version < LAST_TOKEN  # else a database says of it only what it says of any number
        return {
            "state": sa.case((is_plan, tasks.c.state), else_=State.DEAD.value),
            "parked_due": sa.case((is_plan, sa.null()), else_=tasks.c.execution_time),
            "execution_time": sa.case((is_plan, again), else_=sa.literal(FOREVER, tasks.c.execution_time.type)),
            "last_error": sa.case(
                (has_token, f"{UNREADABLE}{error}".replace("\0", "\\0")), else_=UNREADABLE + NO_TOKEN
            ),
        }

    def let_go_aside(self, connection: sa.Connection, claim: Claim, outcome: AttemptOutcome, error: str) -> str | None:
        """As ``quarantine``, for a held row, under its claim's fence; what it is then, None if the claim was lost.

        What the handler came to is told to the ledger. If it came to nothing, the next claim finds an orphan there.
        """
        tasks, slots, row = self.tables.tasks, self.tables.slots, claim.row
        mine = self._held(claim)
        if isinstance(outcome, Died):
            mine.append(tasks.c.last_heartbeat.is_not_distinct_from(row.last_heartbeat))
        released = {
            "picked": False, "picked_by": None, "last_heartbeat": None, "lease": None, "cancel_requested": None,
            "wanted_due": None, "version": min(row.version + 1, LAST_TOKEN),
        }  # fmt: skip
        statement = tasks.update().where(*mine).values(**self._aside(connection, error), **released)
        found = connection.execute(statement.returning(tasks.c.state)).first()
        is_final = isinstance(outcome, Succeeded | Failed | Cancelled) and not getattr(outcome, "promised", False)
        if found is not None and row.ledger_key is not None and is_final:
            connection.execute(
                slots.update()
                .where(*self._at(row.ledger_key), slots.c.token == row.version, slots.c.finished.is_(None))
                .values(outcome=outcome.name, reason=Reason.UNREADABLE, finished=self.now(connection))
            )
        return None if found is None else found.state or Release.POSTPONED

    def hold(self, connection: sa.Connection, claims: Sequence[Claim], *, wait: bool) -> list[Held]:
        """Lock the rows that are still held under these claims; whoever is missing has lost, or is locked."""
        now, found = self.now(connection), []
        for claim in claims:
            values = connection.execute(sa.select(*self.row_columns).where(*self._held(claim))).first()
            if values is not None:
                found.append(Held(row=row_of(values), now=now))
        return found

    def entries(
        self,
        connection: sa.Connection,
        keys: Sequence[LedgerKey],
        *,
        wait: bool,
    ) -> dict[LedgerKey, tuple[LedgerEntry | None, str | None]]:
        """Lock these ledger rows: each key's entry and place; (None, None): no such row; absent: locked by others."""
        slots = self.tables.slots
        found: dict[LedgerKey, tuple[LedgerEntry | None, str | None]] = {}
        for key in keys:
            values = connection.execute(
                sa.select(slots.c.outcome, slots.c.token, slots.c.finished, slots.c.aborted, slots.c.started).where(
                    *self._at(key)
                )
            ).first()
            entry = values and LedgerEntry(
                outcome=values[0], token=values[1], final=values[2] is not None, aborted=values[3], started=values[4]
            )
            found[key] = (entry, None)
        return found

    def release(self, connection: sa.Connection, changes: Sequence[Change]) -> int:
        """Write what becomes of rows locked by ``hold``; how many rows were written."""
        return sum(self._let_go(connection, change) for change in changes)

    def _let_go(self, connection: sa.Connection, change: Change) -> int:
        tasks, mine = self.tables.tasks, self._as_held(change.held.row)
        if change.transition.row is None:
            return connection.execute(tasks.delete().where(*mine)).rowcount
        values = {name: change.transition.row[name] for name in CHANGED_COLUMNS if name in change.transition.row}
        released = {
            "picked": False, "picked_by": None, "last_heartbeat": None, "lease": None, "cancel_requested": None,
            "wanted_due": None,
            "version": tasks.c.version + 1,
        }  # fmt: skip
        return connection.execute(tasks.update().where(*mine).values(**values, **released)).rowcount

    def _as_held(self, row: Row) -> list[sa.ColumnElement[bool]]:
        """The row is what it was when this transaction locked it."""
        tasks = self.tables.tasks
        return [
            tasks.c.task_name == row.task_name,
            tasks.c.task_instance == row.task_instance,
            tasks.c.version == row.version,
            tasks.c.picked_by == row.picked_by,
        ]

    def record(self, connection: sa.Connection, changes: Sequence[Change]) -> None:
        """Write the ledger's side of these changes, under the token; a row that is final already stays as it is."""
        for change in changes:
            self._record(connection, change)

    def _open_entry(self, key: LedgerKey, token: int) -> list[sa.ColumnElement[bool]]:
        """The ledger row of this claim, as long as its slot has not ended."""
        slots = self.tables.slots
        return [*self._at(key), slots.c.token == token, slots.c.finished.is_(None)]

    def _record(self, connection: sa.Connection, change: Change) -> None:
        slots, key, record = self.tables.slots, change.ledger_key, change.transition.record
        if key is None or record is None:
            return
        mine = self._open_entry(key, change.held.row.version)
        if record.forget:
            self.undo_entry(connection, change.held.row)
            return
        begun: dict[str, Any] = {"started": slots.c.started_before} if change.never_began else {}
        if change.never_began and not record.final:
            begun["token"] = slots.c.token + 1  # see undo_entry
        connection.execute(
            slots.update()
            .where(*mine)
            .values(
                outcome=record.outcome, reason=record.reason, error=record.error, attempts=record.attempts,
                lost=slots.c.lost + record.lost, aborted=slots.c.aborted + record.aborted,
                finished=change.finished, **begun,
            )
        )  # fmt: skip

    def gaps(self, connection: sa.Connection, gaps: Iterable[tuple[Row, Gap]], now: datetime) -> None:
        """Enter slots that will not run: a ledger row for one, a gap row for several."""
        for row, gap in gaps:
            self._close_open_slots(connection, row, gap, now)
            if gap.count == 1:
                self._skip(connection, row, gap, now)
            else:
                self._gap(connection, row, gap, now)

    def _close_open_slots(self, connection: sa.Connection, row: Row, gap: Gap, now: datetime) -> None:
        """A slot of the gap that somebody had long ago and nobody ended (the queue was restored alone) ends here.

        What never began is not lost.
        """
        slots = self.tables.slots
        outcome = sa.case((slots.c.started.is_(None), Outcome.SKIPPED.value), else_=Outcome.LOST.value)
        connection.execute(
            slots.update()
            .where(slots.c.task_name == row.task_name, slots.c.task_instance == ledger_instance(row))
            .where(slots.c.slot >= gap.first, slots.c.slot <= gap.last, slots.c.finished.is_(None))
            .where((slots.c.token != row.version) | (slots.c.worker != row.picked_by))
            .where(slots.c.origin.in_(PLANNED))
            .values(outcome=outcome, reason=gap.reason, finished=now)
        )

    def _skip(self, connection: sa.Connection, row: Row, gap: Gap, now: datetime) -> None:
        statement = self.insert(self.tables.slots).values(
            task_name=row.task_name, task_instance=ledger_instance(row), slot=gap.first,
            outcome=Outcome.SKIPPED, reason=gap.reason, finished=now,
        )  # fmt: skip
        connection.execute(statement.on_conflict_do_nothing())

    def _gap(self, connection: sa.Connection, row: Row, gap: Gap, now: datetime) -> None:
        values = {
            "task_name": row.task_name, "task_instance": ledger_instance(row), "first_slot": gap.first,
            "last_slot": gap.last, "count": gap.count, "reason": gap.reason, "created": now,
        }  # fmt: skip
        connection.execute(_wider(self.insert, self.tables.gaps), values)


@lru_cache(maxsize=16)
def _wider(insert: Any, gaps: sa.Table) -> Any:
    """Made once: most claims of a late slot enter a gap. What was decided once is never undone."""
    statement = insert(gaps)
    return statement.on_conflict_do_update(
        index_elements=[gaps.c.task_name, gaps.c.task_instance, gaps.c.first_slot],
        set_={name: statement.excluded[name] for name in ("last_slot", "count", "reason", "created")},
        where=statement.excluded.last_slot > gaps.c.last_slot,
    )
