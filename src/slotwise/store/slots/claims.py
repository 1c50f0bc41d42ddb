"""Claims: due rows become held ones, in batches, and one by one if a row makes its batch fail.

``LateClaims`` decides about rows with missed slots, unreadable rows, and slots that the ledger already has. Claim,
decision, and what is written about slots that do not run are one transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from slotwise.decide import claim as decide
from slotwise.decide.ending import NEWER, defer, left_alone, refuse
from slotwise.errors import InvalidSchedule
from slotwise.model.records import Claim, Gap, Key, Row, Transition
from slotwise.model.vocabulary import Outcome, Reason, Release
from slotwise.schedules import Schedule, parse_schedule
from slotwise.store.connect.database_errors import describe, is_about_a_row
from slotwise.store.dialects.port import Order, Range
from slotwise.store.schema.rows import Change, Held, expect, ledger_instance
from slotwise.store.schema.tables import HAS_SLOT, IS_TASK
from slotwise.store.slots import ledger
from slotwise.store.slots.detached import ask_to_stop, detach_started, release_queued, stranger_of
from slotwise.store.slots.due import MANY
from slotwise.store.slots.gates import Gates, Later, Refusal
from slotwise.store.slots.settlements import claim_of

if TYPE_CHECKING:
    from slotwise.store.slots.store import Store

#: The most rows of one statement: more put PostgreSQL's plans at risk and gain nothing.
BATCH = 500

#: Called with the slots that will not run, after the commit.
OnSkipped: TypeAlias = Callable[[Sequence[tuple[Row, Gap]]], object]

logger = logging.getLogger(__name__)

#: The fewest rows with the same decision for which one statement pays.
ALIKE = 8
#: After so many rows that spoil a batch for an unforeseen reason, the other rows wait for the next claim.
MOST_APART = 20


class _Taken(NamedTuple):
    """How many rows a claim has found, the claims that may start, and the slots that will not run."""

    found: int
    claims: list[Claim]
    skipped: list[tuple[Row, Gap]]


class Claims:
    """Claims what is due."""

    def __init__(self, store: Store) -> None:
        self.dialect, self._due, self.definitions = store.dialect, store.due, store.definitions
        self.transaction, self.warnings, self.poll = store.transaction, store.warnings, store.poll
        self._gates = Gates(self.dialect, self.definitions, store.database.settings)
        #: Jobs whose new slots are all decided about, or pass a gate, before they enter the ledger.
        self._weighed = self._gates.names.union(name for name, found in self.definitions.items() if found.is_weighed)
        self.strict = frozenset(name for name, found in self.definitions.items() if found.gives_up)
        #: What decides about late slots of a job that no gate may stop: jobs with the same share a decision.
        self.policies = {
            name: (found.catch_up, found.start_within)
            for name, found in self.definitions.items()
            if found.is_job and self._gates.late is None and name not in self._gates.names
        }
        self._batch_size = BatchSize(BATCH)
        #: Whether the last claim of one-time tasks has seen due slots; True if it found no task.
        self.slots_may_be_due = True
        #: The tasks of the rows that the last claim has refused, one for each row.
        self.refused: list[str] = []

    def claim(
        self, holder: str, limit: int, *, lease: timedelta, names: Sequence[str], lost: int = 1
    ) -> tuple[int, list[Claim]]:
        """Claim slots, and then one-time tasks; return how many were found, and the claims that may start."""
        found, claims = self.claim_slots(holder, limit, lease=lease, names=names, lost=lost)
        queued = self.claim_tasks(holder, limit - found, lease=lease, names=self._due.tasks_of(names))
        return found + len(queued), claims + queued

    def claim_tasks(
        self, holder: str, limit: int, *, lease: timedelta, names: Sequence[str], ranges: Sequence[Range] | None = None
    ) -> list[Claim]:
        """Claim up to ``limit`` due one-time tasks; not those whose holder has died before.

        ``ranges``: rows before these cursors are left to a claim without them; see ``queue_cursors.py``.
        """
        limit, is_bounded, self.refused = min(limit, BATCH), self._is_bounded(names), []
        if limit <= 0 or not names:
            return []
        order = self._order(holder, names, limit, lease, lost=0, ranges=ranges)
        try:
            with self.transaction() if is_bounded else self._due.look() as connection:
                if is_bounded:
                    order = order._replace(limit=self._gates.room(names, limit, connection))
                    if order.limit == 0:
                        return []
                rows, self.slots_may_be_due = self.dialect.claim_tasks(connection, order)
                if flawed := [(row, row.flaw) for row in rows if row.flaw]:
                    rows = [row for row in rows if row.flaw is None]
                if is_bounded and rows:
                    rows = self._admitted(connection, rows, rows[0].last_heartbeat or rows[0].execution_time)
        except Exception as error:
            if not is_about_a_row(error):
                raise
            return self._claim_row_by_row(order, IS_TASK).claims
        if flawed:
            with self.transaction() as connection:
                self.refuse(connection, flawed, self.dialect.now(connection))
        return [
            Claim(row=row, holder=holder, lease=lease, claimed_at=row.last_heartbeat or row.execution_time)
            for row in rows
        ]

    def claim_slots(
        self, holder: str, limit: int, *, lease: timedelta, names: Sequence[str], lost: int = 1,
        on_skipped: OnSkipped = lambda ranges: None,
    ) -> tuple[int, list[Claim]]:  # fmt: skip
        """Claim up to ``limit`` due slots; return how many were found, and the claims that may start.

        Rows with nothing to run move on in the same transaction. At most ``lost`` rows, also of one-time tasks, are
        rows whose holder has died before.
        """
        is_level, self.refused, are_many = False, [], len(names) > MANY
        since = self._due.since(names) if self._due.is_behind else None
        if are_many:
            names, is_level, since = self._due.names(names, limit, since)
            if not names:
                return 0, []
        size = min(limit, self._batch_size.size)
        order = self._order(holder, names, size, lease, lost=lost, is_level=is_level, since=since)
        try:
            taken = self._claim(order)
        except Exception as error:
            if not is_about_a_row(error):
                raise
            taken = self._claim_row_by_row(order)
        if are_many and taken.found < size:
            self._due.forget()
        if taken.skipped:
            on_skipped(taken.skipped)
        return taken.found, taken.claims

    def claim_row(
        self, holder: str, key: Key, *, lease: timedelta, on_skipped: OnSkipped = lambda ranges: None
    ) -> list[Claim]:  # fmt: skip
        """Claim this row alone, as ``claim_slots`` does; quarantine it if it cannot be claimed."""
        taken = self._claim_one(self._order(holder, [key.task_name], 1, lease), key)
        if taken.skipped:
            on_skipped(taken.skipped)
        return taken.claims

    def _order(self, holder: str, names: Sequence[str], limit: int, lease: timedelta, **others: Any) -> Order:
        weighed = [name for name in names if name in self._weighed] if self._weighed else ()
        return Order(
            holder=holder, names=names, limit=limit, lease=lease, strict=self.strict, weighed=weighed,
            late=self._gates.late, **others,
        )  # fmt: skip

    def _claim(self, order: Order) -> _Taken:
        is_bounded = self._is_bounded(order.names)
        with self.transaction() as connection:
            if is_bounded:
                order = order._replace(limit=self._gates.room(order.names, order.limit, connection))
            if order.limit == 0 or not (found := self.dialect.claim(connection, order)):
                return _Taken(0, [], [])
            now, begun = found[0][1], self.dialect.clock.elapsed()
            late = [
                (row, not entered and decide.is_weighed(row, now, order.weighed, order.late))
                for row, _, entered in found
                if not (entered and _can_read(row))
            ]
            later = LateClaims(self, connection, now) if late else None
            decided = later.start(late) if later else {}
            started = [one for row, _, _ in found if (one := decided.get(row.key, row)) is not None]
            if is_bounded:
                entered = [row for row in started if row.key not in decided]
                admitted = {row.key for row in self._admitted(connection, entered, now)}
                started = [row for row in started if row.key in decided or row.key in admitted]
            self._batch_size.learn(len(found), len(late), self.dialect.clock.elapsed() - begun, order.lease)
        claims = [Claim(row=row, holder=order.holder, lease=order.lease, claimed_at=now) for row in started]
        return _Taken(len(found), claims, later.skipped if later else [])

    def _claim_row_by_row(self, order: Order, kind: str = HAS_SLOT) -> _Taken:
        """Claim row by row, and quarantine the row that makes the claim of the batch fail."""
        with self.transaction() as connection:
            keys = self.dialect.by_row.due(connection, order, kind)
        all_taken = _Taken(len(keys), [], [])
        for key in keys:
            if len(self.refused) >= MOST_APART:
                break
            try:
                taken = self._claim_one(order, key)
            except SQLAlchemyError:
                if not all_taken.claims:
                    raise
                break  # what is claimed must be returned
            all_taken.claims.extend(taken.claims)
            all_taken.skipped.extend(taken.skipped)
        return all_taken

    def _claim_one(self, order: Order, key: Key) -> _Taken:
        one = order._replace(names=[key.task_name], limit=1, lost=1, instance=key.task_instance, is_level=False)
        try:
            return self._claim(one)
        except Exception as error:
            if not is_about_a_row(error):
                raise
            self.note([key], describe(error))
            with self.transaction() as connection:
                self.dialect.by_row.quarantine(connection, key, describe(error))
            return _Taken(0, [], [])

    def refuse(self, connection: sa.Connection, bad: Sequence[tuple[Row, str]], now: datetime) -> None:
        """Let go of claimed rows that must not run, each with its flaw."""
        changes = [Change(held=Held(row=row, now=now), transition=refuse(row, now, flaw)) for row, flaw in bad]
        expect(self.dialect.by_row.release(connection, changes), len(changes), bad[0][0])
        self.dialect.by_row.record(connection, changes)
        for name in {row.task_name for row, _ in bad}:
            some = [(row.key, flaw) for row, flaw in bad if row.task_name == name]
            self.note([key for key, _ in some], some[-1][1])

    def note(self, keys: Sequence[Key], problem: str) -> None:
        """Count these rows of one task; log a line about it if none was logged a moment ago."""
        self.refused += [key.task_name for key in keys]
        (name, instance), problem = keys[-1], f"{problem:.1000}"
        if rows := self.warnings.count(name, problem, len(keys)):
            logger.warning("%s: rows that are quarantined: %d; the last is %r: %s", name, rows, instance, problem)

    def _admitted(self, connection: sa.Connection, rows: Sequence[Row], now: datetime) -> list[Row]:
        """Count the starts of a limited task. Release the rows that a gate stops; return the others."""
        refused = self._gates.admit(rows, now, connection)
        if stopped := [claim_of(row) for row in rows if row.key in refused]:
            changes = []
            for held in self.dialect.hold(connection, stopped, wait=False):
                answer = refused[held.row.key]
                ends = Transition(label=Release.MOVED_ON, row=None)
                change = defer(held.row, answer.due, answer.reason) if isinstance(answer, Later) else ends
                changes.append(Change(held=held, transition=change))
            expect(self.dialect.release(connection, changes), len(stopped), stopped[0].row)
        return [row for row in rows if row.key not in refused]

    def _is_bounded(self, names: Sequence[str]) -> bool:
        """Return whether a gate bounds the claim of these tasks: then both are one transaction."""
        return len(names) == 1 and names[0] in self._gates.limited


def _can_read(row: Row) -> bool:
    """Race: during a deploy a newer release plans rows with schedules that this one does not know."""
    if row.flaw is not None:
        return False
    try:
        return not row.is_plan or parse_schedule(row.schedule or "-") is not None
    except InvalidSchedule:
        return False


# -- claims that need a decision --------------------------------------------------------------------------------


@dataclass(slots=True)
class _Plan:
    """A readable plan row with its decision. ``is_behind``: the ledger has already decided the row's slot."""

    row: Row
    schedule: Schedule
    newest: datetime | None
    is_behind: bool
    decision: decide.Start | decide.Advance = field(init=False)

    @property
    def starting(self) -> Row:
        """The row with the slot that is to start, for gates: a catch-up that was handed back still is one."""
        assert isinstance(self.decision, decide.Start)
        return replace(self.decision.row, origin=self.decision.row.origin or self.row.origin)


class LateClaims:
    """Decides within a claim's transaction which slot of each claimed row starts, if any."""

    def __init__(self, claims: Claims, connection: sa.Connection, now: datetime) -> None:
        self._dialect, self._definitions, self._gates = claims.dialect, claims.definitions, claims._gates
        self._claims, self._poll, self._strict = claims, claims.poll, claims.strict
        self._connection, self._now = connection, now
        #: The slots that will not run.
        self.skipped: list[tuple[Row, Gap]] = []
        #: The rows that cannot be read or decided, each with its flaw.
        self._bad: list[tuple[Row, str]] = []

    def start(self, late: Sequence[tuple[Row, bool]]) -> dict[Key, Row | None]:
        """Return for each claimed row the row with the slot that starts; None: the row has moved on.

        Each row comes with whether its slot has not yet been offered to the ledger.
        """
        found, late = self._start_alike(late)
        if not late:
            return found
        found |= dict.fromkeys(row.key for row, _ in late)
        self._bad = [(row, row.flaw) for row, _ in late if row.flaw]
        late = [(row, is_open) for row, is_open in late if row.flaw is None]
        # A slot that is too late must free its place before the places are counted.
        beside = [
            (row, is_open) for row, is_open in late if row.is_detached and not (is_open and self._has_given_up(row))
        ]
        plans = self._decide([row for row, _ in late if not row.is_detached])
        starting = [one.starting for one in plans if isinstance(one.decision, decide.Start)]
        asked = [*(row for row, is_open in beside if is_open), *starting]
        refused = self._gates.admit(asked, self._now, self._connection)
        found |= self._start_plans(plans, refused)
        for row, is_open in beside:
            if (answer := refused.get(row.key)) is None:
                found[row.key] = self._start_detached(row, is_open=is_open)
            elif isinstance(answer, Later):
                self._defer(row, answer)
            else:
                self._skip(row, answer.reason)
        if self._bad:
            self._claims.refuse(self._connection, self._bad, self._now)
        return found

    def _start_alike(
        self, late: Sequence[tuple[Row, bool]]
    ) -> tuple[dict[Key, Row | None], Sequence[tuple[Row, bool]]]:
        """Decide once about rows with the same schedule, slot and policies, and start them; return also the others."""
        groups: dict[object, list[tuple[Row, bool]]] = {}
        for one in late:
            row, policies = one[0], self._claims.policies.get(one[0].task_name)
            is_simple = policies is not None and _is_simple(row)
            groups.setdefault((row.schedule, row.slot, policies) if is_simple else None, []).append(one)
        left, found = groups.pop(None, []), dict[Key, Row | None]()
        for alike in groups.values():
            rows = [row for row, _ in alike]
            if len(rows) < ALIKE or (start := self._common_start(rows[0])) is None:
                left += alike
                continue
            may_run = self._dialect.start_alike(self._connection, rows, start, self._now, self._strict)
            chosen = [(name, getattr(start.row, name)) for name in decide.CHOSEN]
            for one in alike:
                row, key = one[0], one[0].key
                if may_run is not None and key not in may_run:
                    left.append(one)
                    continue
                found[key] = row
                for name, value in chosen:  # nothing has seen the row yet: a copy would cost as much as reading it
                    setattr(row, name, value)
                self.skipped += [(row, gap) for gap in start.gaps]
        return found, left

    def _common_start(self, row: Row) -> decide.Start | None:
        """Return the start of a row of which ledger and gaps know nothing newer; None if it must be decided alone."""
        try:
            schedule = parse_schedule(row.schedule or "-")
            definition = self._definitions[row.task_name]
            start = decide.at_claim(row, schedule, self._now, None, definition, poll=self._poll)
        except Exception:  # it is met again there
            return None
        if not isinstance(start, decide.Start) or len(start.gaps) > 1:
            return None
        return replace(start, gaps=_following(schedule, start.gaps))

    def _decide(self, rows: Sequence[Row]) -> list[_Plan]:
        """Return what becomes of each plan row that can be read and decided."""
        keys = [row.key for row in rows]
        newest = self._dialect.newest_decided(self._connection, keys, self._strict) if keys else []
        plans = [one for row, known in zip(rows, newest, strict=True) if (one := self._read(row, known)) is not None]
        full = self._gates.admit([one.row for one in plans], self._now, self._connection, is_decided=False)
        decided = []
        for one in plans:
            try:
                one.decision = decide.at_claim(
                    one.row, one.schedule, self._now, one.newest, self._definitions[one.row.task_name],
                    is_full=one.row.key in full, poll=self._poll,
                )  # fmt: skip
            except Exception as error:  # values that no release writes
                self._bad.append((one.row, str(error)))
            else:
                decided.append(one)
        return decided

    def _read(self, row: Row, newest: datetime | None) -> _Plan | None:
        if (newer := self._definitions[row.task_name].payload.newer(row.task_data)) is not None:
            # This release's policies decide nothing about slots that only a newer one runs.
            self._claims.warnings.newer(row, self._now, newer)
            self._let_go(row, left_alone(row, self._now, newer))
            return None
        try:
            schedule = parse_schedule(row.schedule or "-")
        except InvalidSchedule as error:
            kind = NEWER if error.may_be_newer else ""
            self._bad.append((row, f"{kind}schedule {row.schedule!r:.200}: {error}"))
            return None
        # The ledger is ahead of a row that was restored alone, and of one that was handed back.
        is_ahead = row.slot is not None and newest is not None and row.slot <= newest
        is_behind = is_ahead and not decide.has_decided_ahead(row, newest)
        return _Plan(decide.without_attempts(row) if is_behind else row, schedule, newest, is_behind)

    def _start_plans(self, plans: Sequence[_Plan], refused: Mapping[Key, Refusal]) -> dict[Key, Row | None]:
        answered = []
        for one in plans:
            answer = refused.get(one.row.key)
            if isinstance(answer, Later):
                self._defer(one.row, answer)
                continue
            if answer is not None and isinstance(one.decision, decide.Start):
                one.decision = decide.skipped(one.schedule, one.decision, answer.reason)
            answered.append(one)
        gaps = [(one.row, gap) for one in answered for gap in _following(one.schedule, one.decision.gaps)]
        self._dialect.gaps(self._connection, gaps, self._now)
        self.skipped += gaps
        found: dict[Key, Row | None] = {}
        usual: list[tuple[_Plan, Row]] = []
        for one in answered:
            if isinstance(one.decision, decide.Advance):
                if one.decision.replaces:
                    ask_to_stop(self._connection, self._dialect, one.row, one.decision.replaces, self._now)
                self._move_past(one.row, one.decision.row)
            elif self._definitions[one.row.task_name].overlap.detaches and one.row.attempt == 1:
                found[one.row.key] = self._start_beside(one, one.decision.row)
            else:
                usual.append((one, one.decision.row))
        found |= self._begin(usual)
        overruled = [one.starting for one in answered if one.row.key in found and found[one.row.key] is None]
        self._gates.give_back(overruled, self._now, self._connection)
        return found

    def _begin(self, usual: Sequence[tuple[_Plan, Row]]) -> dict[Key, Row | None]:
        if not usual:
            return {}
        rows = [started for _, started in usual]
        may_run = self._dialect.begin(self._connection, rows, self._now, self._strict)
        found: dict[Key, Row | None] = {}
        for one, started in usual:
            if one.is_behind:  # it may have left an open slot in the ledger
                self._end_orphans(started)
            if started.key in may_run or self._enter_disowned(started):
                found[started.key] = started
            else:
                found[started.key] = None
                self._move_past(started, decide.past_slot(started, one.schedule))
        return found

    def _start_beside(self, one: _Plan, started: Row) -> Row | None:
        """Start the slot in a detached row, and move the plan row on."""
        detached = detach_started(self._connection, self._dialect, started, self._now)
        if detached is None and (stranger := stranger_of(self._connection, self._dialect, started)) is not None:
            self._claims.note([stranger], "it has the id of a slot and is not its row: the slot is skipped; delete it")
            self._skip_slot(started, Reason.UNREADABLE)
        if detached is not None and not self._enter(detached):
            # The ledger refuses the slot: delete the new row.
            mine = self._dialect.by_row.under(detached, detached.picked_by)
            self._connection.execute(self._dialect.tables.tasks.delete().where(*mine))
            detached = None
        definition = self._definitions[started.task_name]
        columns = decide.beside(started, one.schedule, definition, self._now)
        self._move_on(one.row, columns if detached else decide.past_slot(started, one.schedule))
        if one.is_behind:  # as in ``_begin``
            self._end_orphans(started)
        return detached

    def _start_detached(self, row: Row, *, is_open: bool) -> Row | None:
        if self._enter(row):
            return row
        # Its only slot has run, is held under another claim, or may start only once.
        self._gates.give_back([row] if is_open else [], self._now, self._connection)
        ledger.close_reopened(self._connection, self._dialect, row, self._now)
        self._move_past(row, None)
        return None

    def _has_given_up(self, row: Row) -> bool:
        """Skip a detached slot of the schedule that was handed back and is too late by now."""
        reason = decide.given_up(row, self._definitions[row.task_name], self._now)
        if reason is not None:
            self._skip(row, reason)
        return reason is not None

    def _skip(self, row: Row, reason: str) -> None:
        """End the slot of a detached row without a start."""
        self._skip_slot(row, reason)
        self._move_on(row, None)

    def _skip_slot(self, row: Row, reason: str) -> None:
        assert row.slot is not None
        ledger.end_unbegun(self._connection, self._dialect, row, Outcome.SKIPPED, reason, self._now)
        self.skipped.append((row, Gap(first=row.slot, last=row.slot, count=1, reason=reason)))

    def _defer(self, row: Row, later: Later) -> None:
        if row.is_detached:
            ledger.put_off(self._connection, self._dialect, row, later.reason)
        self._let_go(row, defer(row, later.due, later.reason))

    def _enter(self, row: Row) -> bool:
        entered = self._dialect.by_row.enter(self._connection, row, self._now, self._strict)
        return entered or self._enter_disowned(row)

    def _enter_disowned(self, row: Row) -> bool:
        is_free = row.task_name not in self._strict and ledger.disown(self._connection, self._dialect, row)
        return is_free and self._dialect.by_row.enter(self._connection, row, self._now, self._strict)

    def _move_past(self, row: Row, columns: dict[str, Any] | None) -> None:
        """Move the row on, and end open slots of the job that no row has any more."""
        self._move_on(row, columns)
        self._end_orphans(row)

    def _end_orphans(self, row: Row) -> None:
        ledger.end_orphans(self._connection, self._dialect, row.task_name, ledger_instance(row), self._now)

    def _move_on(self, row: Row, columns: dict[str, Any] | None) -> None:
        self._let_go(row, Transition(label=Release.MOVED_ON, row=columns))

    def _let_go(self, row: Row, transition: Transition) -> None:
        change = Change(held=Held(row=row, now=self._now), transition=transition)
        expect(self._dialect.by_row.release(self._connection, [change]), 1, row)
        self._dialect.by_row.record(self._connection, [change])
        if row.is_detached and transition.remove:
            release_queued(self._connection, self._dialect, [change])


def _is_simple(row: Row) -> bool:
    """Whether a late row waits for its first attempt at a slot after which nothing is decided."""
    if row.flaw is not None or row.task_data is not None or not row.is_plan:
        return False
    if row.slot is None or row.slot != row.watermark:
        return False
    if row.attempt != 1 or row.lost_count or row.collapsed or row.origin is not None:
        return False
    return not (row.unheld_since or row.catch_up_until or row.trying_since or row.called_off)


def _following(schedule: Schedule, gaps: Sequence[Gap]) -> tuple[Gap, ...]:
    """Return the gaps, each with the slot before it: it may extend the gap that ends there."""
    return tuple(replace(gap, after=schedule.latest_before(gap.first)) if gap.count > 1 else gap for gap in gaps)


#: The size of the first claim: it is not known yet what a late slot costs.
FIRST = 100
#: How long decisions of one claim may take; at most this part of its lease.
LONGEST = timedelta(seconds=1)
PART_OF_LEASE = 8
#: Decisions that take less than this part of it say nothing about their number: round trips take as long.
NOTHING = 20


class BatchSize:
    """How many due slots a claim takes, up to ``most``: as many late ones as it can decide about in a moment.

    Race: a claim's lease runs while it decides, and nothing starts before its commit. If decisions took that long, the
    claim would be handed back as a whole, again and again. Full claims of slots on time grow, and those that were
    decided at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.size = min(FIRST, most)

    def learn(self, taken: int, late: int, took: float, lease: timedelta) -> None:
        bearable = min(LONGEST, lease / PART_OF_LEASE).total_seconds()
        if late and took * NOTHING > bearable:
            self.size = max(int(min(self._most, late * bearable / took)), 1)
        elif taken >= self.size:
            self.size = min(2 * self.size, self._most)
