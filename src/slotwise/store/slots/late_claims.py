"""The longer path of a claim: rows with missed slots, or that cannot be read; slots that the ledger has already.

All of it happens in the claim's own transaction: claim, decision, ledger and gap rows, and the advance if
nothing starts, are seen by others together or not at all.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from slotwise import decide
from slotwise.errors import InvalidSchedule
from slotwise.jobs.definition import Definition
from slotwise.model.records import Claim, Gap, Key, Row, Transition
from slotwise.model.vocabulary import PLANNED, Reason, Release
from slotwise.schedules import Schedule, parse_schedule
from slotwise.store.dialects.port import Dialect
from slotwise.store.schema.rows import Change, Held, expect, ledger_instance
from slotwise.store.slots import ledger
from slotwise.store.slots.concurrent_slots import SlotRows
from slotwise.store.slots.gates import Gates, Later, Refusal
from slotwise.store.slots.queued_slots import release_queued

if TYPE_CHECKING:
    from slotwise.store.slots.store import RowWarnings

logger = logging.getLogger(__name__)


class _Plan(NamedTuple):
    """A plan row that can be read. ``is_behind``: the ledger has its slot as decided."""

    row: Row
    schedule: Schedule
    newest: datetime | None
    is_behind: bool


@dataclass(frozen=True, slots=True)
class _Decided:
    """What becomes of a plan row. ``detaches``: its job, if this slot runs in a row of its own."""

    row: Row
    schedule: Schedule
    decision: decide.Start | decide.Advance
    is_behind: bool
    detaches: Definition | None

    @property
    def starting(self) -> Row:
        """The row with the slot that is to start, as gates see it: a catch-up that was handed back still is one."""
        assert isinstance(self.decision, decide.Start)
        started = decide.started(self.row, self.decision)
        return replace(started, origin=started.origin or self.row.origin)

    def without_start(self, reason: str) -> _Decided:
        """The same row, past the slot that a gate skips."""
        assert isinstance(self.decision, decide.Start)
        return replace(self, decision=decide.skipped(self.row, self.schedule, self.decision, reason))


class LateClaims:
    """Decides which slot of each claimed row starts, if any."""

    def __init__(
        self,
        dialect: Dialect,
        definitions: Mapping[str, Definition],
        gates: Gates,
        complaints: RowWarnings,
        poll: timedelta,
    ) -> None:
        self._dialect = dialect
        self._definitions = definitions
        self._tasks = dialect.tables.tasks
        self._slot_rows = SlotRows(dialect)
        self._gates = gates
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
        """Return each claimed row with the slot that starts; None: nothing does, and the row has moved on.

        Beside each row: whether the ledger has not refused its slot, which is not entered there. ``skipped`` receives
        the slots that will not run.
        """
        found: dict[Key, Row | None] = {row.key: None for row, _ in late}
        # A slot that is too late leaves its place before the places are counted.
        beside = [
            (row, is_open)
            for row, is_open in late
            if row.is_detached and not (is_open and self._has_given_up(connection, row, now, skipped))
        ]
        decided = self._decide(connection, [row for row, _ in late if not row.is_detached], now)
        starting = [one.starting for one in decided if isinstance(one.decision, decide.Start)]
        refused = self._gates.admit([*(row for row, is_open in beside if is_open), *starting], now, connection)
        found |= self._start_plans(connection, decided, refused, now, skipped)
        for row, is_open in beside:
            if (answer := refused.get(row.key)) is None:
                found[row.key] = self._start_detached(connection, row, now, is_open=is_open)
            elif isinstance(answer, Later):
                self._defer(connection, row, answer, now)
            else:
                self._skip(connection, row, answer.reason, now, skipped)
        return found

    def refuse_tasks(self, connection: sa.Connection, claims: Sequence[Claim], refused: Mapping[Key, Refusal]) -> None:
        """Let claimed one-time tasks go that a gate has stopped. They are read again: a claim reads a part of them."""
        changes = []
        for held in self._dialect.hold(connection, claims, wait=False):
            answer = refused[held.row.key]
            ends = Transition(label=Release.MOVED_ON, row=None)
            change = decide.defer(held.row, answer.due) if isinstance(answer, Later) else ends
            changes.append(Change(held=held, transition=change))
        expect(self._dialect.release(connection, changes), len(claims), claims[0].row)

    def _decide(self, connection: sa.Connection, rows: Sequence[Row], now: datetime) -> list[_Decided]:
        """Return what becomes of each plan row that can be read; the others are put off."""
        newest = self._dialect.newest_decided(connection, rows, strict=self._strict) if rows else []
        read = (self._read(connection, row, known, now) for row, known in zip(rows, newest, strict=True))
        plans = [one for one in read if one is not None]
        full = self._gates.admit([one.row for one in plans], now, connection, is_decided=False)
        found = []
        for row, schedule, known, is_behind in plans:
            definition = self._definitions.get(row.task_name)
            decision = decide.at_claim(
                row, schedule, now, known, definition, is_full=row.key in full, poll=self._poll
            )  # fmt: skip
            detaches = definition is not None and definition.overlap.detaches and row.attempt == 1
            found.append(_Decided(row, schedule, decision, is_behind, definition if detaches else None))
        return found

    def _read(self, connection: sa.Connection, row: Row, newest: datetime | None, now: datetime) -> _Plan | None:
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
        return _Plan(decide.anew(row) if is_behind else row, schedule, newest, is_behind)

    def _start_plans(
        self,
        connection: sa.Connection,
        decided: Sequence[_Decided],
        refused: Mapping[Key, Refusal],
        now: datetime,
        skipped: list[tuple[Row, Gap]],
    ) -> dict[Key, Row | None]:
        """What is written is written for all together, where it can be."""
        answered = []
        for one in decided:
            answer = refused.get(one.row.key)
            if isinstance(answer, Later):
                self._defer(connection, one.row, answer, now)
            else:
                answered.append(one if answer is None else one.without_start(answer.reason))
        gaps = [(one.row, gap) for one in answered for gap in one.decision.gaps]
        self._dialect.gaps(connection, gaps, now)
        skipped += gaps
        found: dict[Key, Row | None] = {}
        usual: list[tuple[_Decided, Row]] = []
        for one in answered:
            if isinstance(one.decision, decide.Advance):
                self._advance(connection, one, one.decision, now)
            elif one.detaches is not None:
                found[one.row.key] = self._start_beside(connection, one, decide.started(one.row, one.decision), now)
            else:
                usual.append((one, decide.started(one.row, one.decision)))
        found |= self._begin(connection, usual, now)
        overruled = [one.starting for one in answered if one.row.key in found and found[one.row.key] is None]
        self._gates.give_back(overruled, now, connection)
        return found

    def _advance(self, connection: sa.Connection, one: _Decided, decision: decide.Advance, now: datetime) -> None:
        if decision.replaces:
            self._slot_rows.ask_to_stop(connection, one.row, decision.replaces, now)
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
                found[started.key] = self._pass(connection, started, now, decide.past(started, one.schedule))
        return found

    def _start_detached(self, connection: sa.Connection, row: Row, now: datetime, *, is_open: bool) -> Row | None:
        if self._enter(connection, row, now):
            return row
        # Its only slot has run, or is held under another claim, or gives up: nothing is left to do here.
        self._gates.give_back([row] if is_open else [], now, connection)
        ledger.close_reopened(connection, self._dialect, row, now)
        return self._pass(connection, row, now, None)

    def _has_given_up(self, connection: sa.Connection, row: Row, now: datetime, skipped: list[tuple[Row, Gap]]) -> bool:
        """Skip a slot of the schedule that has a row of its own, was handed back, and is too late by now."""
        definition = self._definitions.get(row.task_name)
        if definition is None or row.attempt != 1 or row.origin not in PLANNED or row.schedule is None:
            return False
        with suppress(InvalidSchedule):  # then it starts, as was decided
            reason = decide.given_up(row, definition, parse_schedule(row.schedule), now)
            if reason is not None:
                self._skip(connection, row, reason, now, skipped)
                return True
        return False

    def _skip(
        self, connection: sa.Connection, row: Row, reason: str, now: datetime, skipped: list[tuple[Row, Gap]]
    ) -> None:
        """End the slot of a detached row without a start."""
        assert row.slot is not None
        ledger.skip(connection, self._dialect, row, reason, now)
        skipped.append((row, Gap(first=row.slot, last=row.slot, count=1, reason=reason)))
        self._move_on(connection, row, now, None)

    def _defer(self, connection: sa.Connection, row: Row, later: Later, now: datetime) -> None:
        """A row of its own keeps its ledger row, which says what it waits for."""
        if row.is_detached:
            ledger.put_off(connection, self._dialect, row, Reason.RECOVERY)
        self._let_go(connection, row, now, decide.defer(row, later.due))

    def _start_beside(self, connection: sa.Connection, one: _Decided, started: Row, now: datetime) -> Row | None:
        """The slot starts in a row of its own; the plan row goes on, in this very transaction."""
        assert one.detaches is not None
        detached = self._slot_rows.detach(connection, started, now)
        if detached is not None and not self._enter(connection, detached, now):
            self._slot_rows.drop(connection, detached)
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
