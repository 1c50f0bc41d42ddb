"""The longer path of a claim: rows with missed slots, or that cannot be read; slots that the ledger has already.

All of it happens in the claim's own transaction: claim, decision, ledger and gap rows, and the advance if
nothing starts, are seen by others together or not at all.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from slotwise import decide
from slotwise.errors import InvalidSchedule
from slotwise.jobs.definition import Definition
from slotwise.model.records import Gap, Key, Row, Transition
from slotwise.model.vocabulary import PLANNED, Origin, Release
from slotwise.schedules import Schedule, parse_schedule
from slotwise.store.dialects.port import Dialect
from slotwise.store.schema.rows import Change, Held, expect, ledger_instance
from slotwise.store.slots import ledger
from slotwise.store.slots.concurrent_slots import ConcurrentSlots
from slotwise.store.slots.queued_slots import release_queued
from slotwise.store.slots.recovery_rate import RecoveryRate
from slotwise.store.slots.row_warnings import RowWarnings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Decided:
    """What becomes of a plan row. ``detaches``: its job, if this slot runs in a row of its own."""

    row: Row
    schedule: Schedule
    decision: decide.Start | decide.Advance
    is_behind: bool
    detaches: Definition | None


class LateClaims:
    """Decides which slot of each claimed row starts, if any."""

    def __init__(
        self,
        dialect: Dialect,
        definitions: Mapping[str, Definition],
        budget: RecoveryRate,
        complaints: RowWarnings,
        poll: timedelta,
    ) -> None:
        self._dialect = dialect
        self._definitions = definitions
        self._tasks = dialect.tables.tasks
        self._concurrent_slots = ConcurrentSlots(dialect)
        self._recovery_rate = budget
        self._complaints = complaints
        self._poll = poll
        self._strict = frozenset(name for name, found in definitions.items() if found.gives_up)

    def start(
        self,
        connection: sa.Connection,
        late: Sequence[tuple[Row, bool]],
        now: datetime,
        skipped: list[tuple[Row, Gap]],
    ) -> dict[Key, Row | None]:
        """Of rows that were claimed together, each with the slot that starts; None: nothing does, and it has moved on.

        Beside each row: whether the claim has put its slot into the ledger as if nothing spoke against it. ``skipped``
        takes in which slots will not run.
        """
        for row, entered in late:
            if entered:
                self._dialect.by_row.undo_entry(connection, row, keep=row.is_detached and row.origin != Origin.TRIGGER)
        found: dict[Key, Row | None] = {row.key: None for row, _ in late}
        beside = [one for one in late if one[0].is_detached]
        holding = [one for one in beside if one[0].origin in PLANNED]  # who is too late leaves its place
        for row, entered in holding:
            found[row.key] = self._start_detached(connection, row, now, skipped, entered=entered)
        found |= self._start_plans(connection, [row for row, _ in late if not row.is_detached], now, skipped)
        for row, entered in beside:
            if row.origin not in PLANNED:
                found[row.key] = self._start_detached(connection, row, now, skipped, entered=entered)
        return found

    def _start_plans(
        self, connection: sa.Connection, plans: Sequence[Row], now: datetime, skipped: list[tuple[Row, Gap]]
    ) -> dict[Key, Row | None]:
        """What is written is written for all together, where it can be."""
        newest = self._dialect.newest_decided(connection, plans, strict=self._strict) if plans else []
        asked = (self._decide(connection, row, known, now) for row, known in zip(plans, newest, strict=True))
        decided = [one for one in asked if one is not None]
        gaps = [(one.row, gap) for one in decided for gap in one.decision.gaps]
        self._dialect.gaps(connection, gaps, now)
        skipped += gaps
        found: dict[Key, Row | None] = {}
        usual: list[tuple[_Decided, Row]] = []
        for one in decided:
            if isinstance(one.decision, decide.Advance):
                self._advance(connection, one, one.decision, now)
            elif one.detaches is not None:
                found[one.row.key] = self._start_beside(connection, one, decide.started(one.row, one.decision), now)
            else:
                usual.append((one, decide.started(one.row, one.decision)))
        return found | self._begin(connection, usual, now)

    def _decide(self, connection: sa.Connection, row: Row, newest: datetime | None, now: datetime) -> _Decided | None:
        """None: nothing starts, and nothing is decided yet."""
        try:
            schedule = parse_schedule(row.schedule or "-")
        except InvalidSchedule as error:
            shown = f"schedule {row.schedule!r:.200}: {error}"
            if self._complaints.are_new(row.key, shown):
                logger.warning("%s/%s cannot be read and is put off: %s", *row.key, shown)
            self._let_go(connection, row, now, decide.postponed(row, now, f"{decide.UNREADABLE}{shown}"))
            return None
        # The ledger may be ahead of a row that was restored alone, or rightly of one that was handed back.
        is_ahead = row.slot is not None and newest is not None and row.slot <= newest
        is_behind = is_ahead and not decide.was_handed_back(row)
        row = decide.anew(row) if is_behind else row
        definition = self._definitions.get(row.task_name)
        detaches = definition if definition is not None and definition.overlap.detaches and row.attempt == 1 else None
        taken = self._concurrent_slots.taken(connection, row) if detaches else 0
        decision = decide.at_claim(row, schedule, now, newest, definition, taken, poll=self._poll)
        if isinstance(decision, decide.Start) and (later := self._later(connection, row, decision.origin, now)):
            self._let_go(connection, row, now, later)
            return None
        return _Decided(row, schedule, decision, is_behind, detaches)

    def _advance(self, connection: sa.Connection, one: _Decided, decision: decide.Advance, now: datetime) -> None:
        if decision.replaces:
            self._concurrent_slots.ask_to_stop(connection, one.row, decision.replaces, now)
        self._pass(connection, one.row, now, decision.row)

    def _begin(
        self, connection: sa.Connection, usual: Sequence[tuple[_Decided, Row]], now: datetime
    ) -> dict[Key, Row | None]:
        if not usual:
            return {}
        may_run = self._dialect.begin(connection, [started for _, started in usual], now, strict=self._strict)
        found: dict[Key, Row | None] = {}
        for one, started in usual:
            if one.is_behind:  # it may have left a slot behind that is open in the ledger
                ledger.end_orphans(connection, self._dialect, started.task_name, ledger_instance(started), now)
            if started.key in may_run or self._enter_disowned(connection, started, now):
                found[started.key] = started
            else:
                self._pass(connection, started, now, decide.past(started, one.schedule))
        return found

    def _start_detached(
        self, connection: sa.Connection, row: Row, now: datetime, skipped: list[tuple[Row, Gap]], *, entered: bool
    ) -> Row | None:
        if entered and (ended := self._given_up(row, now)) is not None:
            assert row.slot is not None
            assert ended.record is not None
            skipped.append((row, Gap(first=row.slot, last=row.slot, count=1, reason=ended.record.reason or "")))
            return self._let_go(connection, row, now, ended)
        if later := self._later(connection, row, row.origin, now):
            return self._let_go(connection, row, now, later)
        if self._enter(connection, row, now):
            return row
        # Its only slot has run, or is held under another claim, or gives up: nothing is left to do here.
        ledger.close_reopened(connection, self._dialect, row, now)
        return self._pass(connection, row, now, None)

    def _given_up(self, row: Row, now: datetime) -> Transition | None:
        """Of a slot of the schedule that was to start beside its plan row, and was handed back."""
        definition = self._definitions.get(row.task_name)
        if definition is None or row.attempt != 1 or row.origin not in PLANNED or row.schedule is None:
            return None
        try:
            return decide.given_up(row, definition, parse_schedule(row.schedule), now)
        except InvalidSchedule:
            return None  # it was decided that it starts

    def _later(self, connection: sa.Connection, row: Row, origin: str | None, now: datetime) -> Transition | None:
        """What becomes of a row whose slot may start, and not yet."""
        place = self._recovery_rate.defer(connection, row, origin, now)
        return decide.defer(row, place) if place else None

    def _start_beside(self, connection: sa.Connection, one: _Decided, started: Row, now: datetime) -> Row | None:
        """The slot starts in a row of its own; the plan row goes on, in this very transaction."""
        assert one.detaches is not None
        detached = self._concurrent_slots.detach(connection, started, now)
        if detached is not None and not self._enter(connection, detached, now):
            self._concurrent_slots.drop(connection, detached)
            detached = None
        columns = decide.beside(started, one.schedule, one.detaches, now)
        self._move_on(connection, one.row, now, columns if detached else decide.past(started, one.schedule))
        return detached

    def _enter(self, connection: sa.Connection, row: Row, now: datetime) -> bool:
        strict = row.task_name in self._strict
        entered = self._dialect.by_row.enter(connection, row, now, strict=strict)
        return entered or self._enter_disowned(connection, row, now)

    def _enter_disowned(self, connection: sa.Connection, row: Row, now: datetime) -> bool:
        is_free = row.task_name not in self._strict and ledger.disown(connection, self._dialect, row)
        return is_free and self._dialect.by_row.enter(connection, row, now, strict=False)

    def _move_on(
        self, connection: sa.Connection, row: Row, now: datetime, columns: dict[str, Any] | None
    ) -> Row | None:
        """Let the row go with these columns (None: delete it); nothing starts."""
        return self._let_go(connection, row, now, Transition(label=Release.MOVED_ON, row=columns))

    def _pass(self, connection: sa.Connection, row: Row, now: datetime, columns: dict[str, Any] | None) -> Row | None:
        """Move on to a later slot; what was begun before it, and stands in no row any more, has ended."""
        self._move_on(connection, row, now, columns)
        ledger.end_orphans(connection, self._dialect, row.task_name, ledger_instance(row), now)
        return None

    def _let_go(self, connection: sa.Connection, row: Row, now: datetime, transition: Transition) -> Row | None:
        """By key and not by place: this very transaction has claimed the row, and so moved it."""
        change = Change(held=Held(row=row, now=now), transition=transition)
        expect(self._dialect.by_row.release(connection, change), 1, row)
        self._dialect.by_row.record(connection, change)
        if row.is_detached and transition.remove:
            release_queued(connection, self._dialect, [change])
        return None
