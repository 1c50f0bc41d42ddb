"""Claims: due rows become held ones, in batches, and one by one where a row spoils its batch.

The longer way is for rows with missed slots, or that cannot be read, and for slots that the ledger has already. All of
it happens in the claim's own transaction: claim, decision, ledger and gap rows, and the advance if nothing starts, are
seen by others together or not at all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from slotwise import decide
from slotwise.errors import InvalidSchedule
from slotwise.jobs.definition import Definition
from slotwise.model.records import Claim, Gap, Key, Row, Transition
from slotwise.model.vocabulary import PLANNED, Reason, Release
from slotwise.schedules import Schedule, parse_schedule
from slotwise.store.connect.database_errors import describe, is_about_a_row
from slotwise.store.dialects.port import Dialect
from slotwise.store.dialects.queue_cursors import Range
from slotwise.store.schema.rows import Change, Held, expect, ledger_instance
from slotwise.store.schema.tables import HAS_SLOT, IS_TASK
from slotwise.store.slots import ledger
from slotwise.store.slots.detached import SlotRows
from slotwise.store.slots.gates import Gates, Later, Refusal
from slotwise.store.slots.queued_slots import release_queued
from slotwise.store.slots.settlements import claim_of

if TYPE_CHECKING:
    from slotwise.store.slots.store import RowWarnings, Store

#: At most so many rows in one statement: above it PostgreSQL's plans are at risk, below it nothing is gained.
BATCH = 500

#: Told of slots that will not run.
OnSkipped: TypeAlias = Callable[[Row, Gap], None]

logger = logging.getLogger(__name__)

#: From so many names on, a look at what is due comes before the claim.
MANY = 200


def _nobody(row: Row, gap: Gap) -> None:
    """No-op callback."""


class Claims:
    """Takes what is due."""

    def __init__(self, store: Store) -> None:
        self.dialect, self._due = store.dialect, store.due
        self.transaction, self.schedule_of, self._warnings = store.transaction, store.schedule_of, store.warnings
        database, definitions = store.database, store.definitions
        self._gates = Gates(self.dialect, definitions, database.settings)
        self._late_claims = LateClaims(self.dialect, definitions, self._gates, self._warnings, store.poll)
        #: Jobs of which each new slot is decided on, or asked about at a gate.
        self._weighed = self._gates.names.union(name for name, found in definitions.items() if found.is_weighed)
        self._batch_size = BatchSize(BATCH)
        #: As the last claim of one-time tasks has seen it; who finds none has not looked.
        self.slots_may_be_due = True
        self._strict = tuple(sorted(name for name, found in definitions.items() if found.gives_up))

    def claim(
        self,
        holder: str,
        limit: int,
        *,
        lease: timedelta,
        names: Sequence[str],
        lost: int = 1,
        on_skipped: OnSkipped = _nobody,
    ) -> tuple[int, list[Claim]]:
        """Take up to ``limit`` due rows of these tasks: how many were found, and the claims that may start.

        Slots come before one-time tasks. Rows that turn out to have nothing to run (their slot ran already, their
        text cannot be read) are moved on in the same transaction and are not among the claims. Of rows whose holder
        has died before, at most ``lost`` are taken. ``on_skipped`` is told, once it is committed, which slots will not
        run.
        """
        found, claims = self.claim_slots(holder, limit, lease=lease, names=names, lost=lost, on_skipped=on_skipped)
        queued = self.claim_tasks(holder, limit - found, lease=lease, names=self._due.tasks_of(names))
        return found + len(queued), claims + queued

    def claim_tasks(
        self,
        holder: str,
        limit: int,
        *,
        lease: timedelta,
        names: Sequence[str],
        ranges: Sequence[Range] | None = None,
    ) -> list[Claim]:
        """As ``claim``, and one-time tasks alone, without those whose holder has died before.

        ``ranges``: of rows behind these marks nothing is said; see ``marks.py``.
        """
        limit = min(limit, BATCH)
        if limit <= 0 or not names:
            return []
        try:
            is_bounded = self._gates.may_bound(names)
            with self.transaction() if is_bounded else self._due.look() as connection:
                limit = self._gates.room(names, limit, connection) if is_bounded else limit
                if limit == 0:
                    return []
                rows, self.slots_may_be_due = self.dialect.claim_tasks(
                    connection, holder=holder, names=names, limit=limit, lease=lease, ranges=ranges
                )
                if is_bounded and rows:
                    stopped = self._stopped(connection, rows, rows[0].last_heartbeat or rows[0].execution_time)
                    rows = [row for row in rows if row.key not in stopped]
        except Exception as error:
            if not is_about_a_row(error):
                raise
            return self._claim_apart(holder, names, limit, lease, _nobody, lost=0, kind=IS_TASK)[1]
        return [
            Claim(row=row, holder=holder, lease=lease, claimed_at=row.last_heartbeat or row.execution_time)
            for row in rows
        ]

    def claim_slots(
        self,
        holder: str,
        limit: int,
        *,
        lease: timedelta,
        names: Sequence[str],
        lost: int = 1,
        on_skipped: OnSkipped = _nobody,
    ) -> tuple[int, list[Claim]]:
        """As ``claim``, and slots alone: those of jobs, and of tasks that recur; and whatever was lost before."""
        limit, is_level = min(limit, self._batch_size.size), False
        if len(names) > MANY:
            names, is_level = self._due.names(names)
            if not names:
                return 0, []
        try:
            return self._claim(holder, names, limit, lease, on_skipped, lost=lost, is_level=is_level)
        except Exception as error:
            if not is_about_a_row(error):
                raise
        return self._claim_apart(holder, names, limit, lease, on_skipped, lost=lost)

    def _claim(
        self,
        holder: str,
        names: Sequence[str],
        limit: int,
        lease: timedelta,
        on_skipped: OnSkipped,
        *,
        lost: int,
        instance: str | None = None,
        is_level: bool = False,
    ) -> tuple[int, list[Claim]]:
        skipped: list[tuple[Row, Gap]] = []
        with self.transaction() as connection:
            limit = self._gates.room(names, limit, connection)
            if limit == 0:
                return 0, []
            found = self.dialect.claim(
                connection, holder=holder, names=names, strict=self._strict, weighed=self._weighed_of(names),
                late=self._gates.late, limit=limit, lease=lease, lost=lost, instance=instance, is_level=is_level,
            )  # fmt: skip
            claimed_at, begun = found[0][1] if found else None, self.dialect.clock.elapsed()
            late = [(row, entered) for row, _, entered in found if not (entered and self._can_read(row))]
            decided = self._start_late(connection, late, claimed_at, skipped) if claimed_at and late else {}
            started = [one for row, _, _ in found if (one := decided.get(row.key, row)) is not None]
            if claimed_at and self._gates.may_bound(names):
                entered = [row for row in started if row.key not in decided]
                stopped = self._stopped(connection, entered, claimed_at)
                started = [row for row in started if row.key not in stopped]
            self._batch_size.learn(len(found), len(late), self.dialect.clock.elapsed() - begun, lease)
        for row, gap in skipped:
            on_skipped(row, gap)
        claims = [Claim(row=row, holder=holder, lease=lease, claimed_at=claimed_at) for row in started if claimed_at]
        return len(found), claims

    def _claim_apart(
        self,
        holder: str,
        names: Sequence[str],
        limit: int,
        lease: timedelta,
        on_skipped: OnSkipped,
        *,
        lost: int,
        kind: str = HAS_SLOT,
    ) -> tuple[int, list[Claim]]:
        """One by one: a row that would keep all the others from being claimed is set aside."""
        with self.transaction() as connection:
            keys = self.dialect.by_row.due(connection, names, limit, lost=lost, kind=kind)
        claims: list[Claim] = []
        for key in keys:
            try:
                claims += self._claim_one(holder, key, lease, on_skipped)
            except SQLAlchemyError:
                if not claims:
                    raise
                break  # what is claimed must be told
        return len(keys), claims

    def _claim_one(self, holder: str, key: Key, lease: timedelta, on_skipped: OnSkipped) -> list[Claim]:
        try:
            return self._claim(holder, [key.task_name], 1, lease, on_skipped, lost=1, instance=key.task_instance)[1]
        except Exception as error:
            if not is_about_a_row(error):
                raise
            if self._warnings.are_new(key, describe(error)):
                logger.exception("%s/%s cannot be claimed and is set aside: %s", *key, describe(error))
            with self.transaction() as connection:
                self.dialect.by_row.quarantine(connection, key, describe(error))
            return []

    def _start_late(
        self, connection: sa.Connection, late: Sequence[tuple[Row, bool]], now: datetime, skipped: list[tuple[Row, Gap]]
    ) -> dict[Key, Row | None]:
        weighed, after = self._weighed, self._gates.late
        asked = [(row, not entered and decide.is_weighed(row, now, weighed, after)) for row, entered in late]
        return self._late_claims.start(connection, asked, now, skipped)

    def _stopped(self, connection: sa.Connection, rows: Sequence[Row], now: datetime) -> Collection[Key]:
        """Count the starts of a limited task. Return the keys of one-time tasks that a gate has stopped."""
        refused = self._gates.admit(rows, now, connection)
        if stopped := [claim_of(row) for row in rows if row.key in refused]:
            self._late_claims.refuse_tasks(connection, stopped, refused)
        return refused

    def _weighed_of(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name in self._weighed] if self._weighed else []

    def _can_read(self, row: Row) -> bool:
        """Race: during a deploy a newer release plans rows with schedules that this one does not know."""
        try:
            return not row.is_plan or self.schedule_of(row) is not None
        except InvalidSchedule:
            return False


# -- the longer way ---------------------------------------------------------------------------------------------


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
        keys = [row.key for row in rows]
        newest = self._dialect.newest_decided(connection, keys, strict=self._strict) if keys else []
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
        expect(self._dialect.by_row.release(connection, [change]), 1, row)
        self._dialect.by_row.record(connection, [change])
        if row.is_detached and transition.remove:
            release_queued(connection, self._dialect, [change])
        return None


#: The first claim, when it is not known what a late slot costs.
FIRST = 100
#: How long a claim may decide; and no longer than this part of its lease.
LONGEST = timedelta(seconds=1)
PART_OF_LEASE = 8


class BatchSize:
    """How many due slots a claim takes, up to ``most``: no more late ones than it can decide about within a moment.

    Race: of a claim nothing starts before all of it is committed, while its lease runs. A claim whose decisions take as
    long as the lease goes back as a whole, and so does the next one, as large, for ever. So each claim measures what a
    late slot costs here and now. Claims that come back full with slots on time grow, for those cost next to nothing.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.size = min(FIRST, most)

    def learn(self, taken: int, late: int, took: float, lease: timedelta) -> None:
        """A claim took so many rows; to decide about the late ones among them took so many seconds."""
        if late:
            bearable = min(LONGEST, lease / PART_OF_LEASE).total_seconds()
            self.size = max(int(min(self._most, late * bearable / took if took else self._most)), 1)
        elif taken >= self.size:
            self.size = min(2 * self.size, self._most)
