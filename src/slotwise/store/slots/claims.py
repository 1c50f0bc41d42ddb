"""Claims: due rows become held ones, in batches, and one by one if a row makes its batch fail.

``late_claims.py`` decides, in the claim's transaction, about those that need it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from slotwise.decide.ending import defer, refuse
from slotwise.errors import InvalidSchedule
from slotwise.model.records import Claim, Gap, Key, Row, Transition
from slotwise.model.vocabulary import Release
from slotwise.schedules import parse_schedule
from slotwise.store.connect.database_errors import describe_error, is_about_a_row
from slotwise.store.dialects.port import ClaimRequest, Range, Transaction
from slotwise.store.dialects.quarantine import quarantine
from slotwise.store.queue.queue_cursors import LOOK_BACK, SHARE
from slotwise.store.schema.rows import Change, Held, claim_of, expect
from slotwise.store.schema.tables import HAS_SLOT, IS_TASK, WINDOW
from slotwise.store.slots.gates import FULL_PAUSE, Later, Moment, Refusal
from slotwise.store.slots.late_claims import LateClaims

if TYPE_CHECKING:
    from slotwise.jobs.definition import Definition
    from slotwise.store.slots.store import Store

#: The most rows of one statement: more put PostgreSQL's plans at risk and gain nothing.
BATCH = 500

logger = logging.getLogger(__name__)

#: After so many rows that spoil a batch for an unforeseen reason, the other rows wait for the next
#: claim.
MOST_APART = 20
#: With more names than this, the names of due rows are read before the claim.
MANY = 200
#: Where the first slot of many names is looked for, before the names are sent.
FEW = 50
#: For how long, in seconds, full claims share the names that were found due.
SHARED = 0.1


class DueNames(NamedTuple):
    """Names that have due rows, whether these have all one priority, and since when the oldest of
    them is due.
    """

    names: Sequence[str]
    is_level: bool
    since: datetime | None


class Due:
    """Reads what waits, and when the next of it is due.

    Due slots of a service that no worker runs stay at the front of the index. If many lie there,
    claims and looks begin behind them, where the last full look found the first own slot. Race: a
    slot may become due before that, put back by a hand-back or an operation. The next full look
    finds it, at most once in ``LOOK_BACK``. A claim may come before the look, but only one: the
    slot for which a worker has slept starts first.
    """

    def __init__(self, store: Store) -> None:
        self.database = store.database
        self.dialect = store.dialect
        self.definitions = store.definitions
        self.full = store.gates.full
        #: The names that a worker asks for, always the same, as a set.
        self._asked: tuple[Sequence[str], frozenset[str]] = ((), frozenset())
        #: Where these names begin, until when that holds, in elapsed seconds, and whether a claim
        #: has come since.
        self._begin: tuple[Sequence[str], datetime | None] = ((), None)
        self._until = 0.0
        self._is_overdue = False
        #: The names of rows that were due, for how many more claims, and until when.
        self._found = DueNames((), is_level=False, since=None)
        self._left = 0
        self._shared_until = 0.0

    def next_due(
        self, names: Sequence[str], tasks: Sequence[str] | None = None, *, lost: int = 1
    ) -> timedelta | None:
        """Return the time until the next slot of ``names``, or task of ``tasks``, is due; None:
        nothing waits.

        A row of a task at its limit is not due before the next count.
        """
        tasks = self.tasks_of(names) if tasks is None else tasks
        if not (full := self.full.names()):
            return self._next_due(names, tasks, lost)
        slots_of_full = [name for name in names if name in full]
        full_tasks = [name for name in tasks if name in full]
        due = self._next_due(without(names, full), without(tasks, full), lost)
        later = self._next_due(slots_of_full, full_tasks, lost)
        if later is None:
            return due
        later = max(later, FULL_PAUSE)
        return later if due is None else min(due, later)

    def _next_due(
        self, names: Sequence[str], tasks: Sequence[str], lost: int
    ) -> timedelta | None:
        left = self._until - (began := self.dialect.clock.elapsed())
        since = self._begin[1] if left > 0 and self._begin[0] is names else None
        begin = None
        found = [self._first(names, lost, since)]
        if found[0] is None or tasks:
            unknown, no_slots = (
                (names, self._has_no_job(names)) if found[0] is None else ((), True)
            )
            with self.look() as connection:
                due, begin = self.dialect.next_due(
                    connection, unknown, tasks, lost=lost, since=since, no_slots=no_slots
                )
            found.append(due)
        due = min((one for one in found if one is not None), default=None)
        if since is not None:  # it may have passed over a slot
            return (
                timedelta(seconds=left)
                if due is None
                else min(due, timedelta(seconds=left))
            )
        if begin is not None or self._begin[0] is names:
            took = self.dialect.clock.elapsed() - began
            self._begin = (names, begin)
            self._until = began + max(LOOK_BACK, SHARE * took)
            self._is_overdue = False
        return due

    def _first(
        self, names: Sequence[str], lost: int, since: datetime | None
    ) -> timedelta | None:
        """Return the time until the first slot of many names is due, if it is among the first
        few of all.
        """
        if len(names) <= MANY:
            return None
        with self.look() as connection:
            first = self.dialect.first_slots(connection, FEW, lost=lost, since=since)
        self._ask(names)
        return min((due for name, due in first if name in self._asked[1]), default=None)

    def since(self, names: Sequence[str]) -> datetime | None:
        """Return from which due time on a claim of these slots searches; None: from the
        beginning.
        """
        if self._begin[1] is None or self._begin[0] is not names:
            return None
        if self.dialect.clock.elapsed() >= self._until:
            if self._is_overdue:
                self._next_due(names, (), lost=1)
            self._is_overdue = True
        return self._begin[1]

    def names(
        self, names: Sequence[str], limit: int, since: datetime | None = None
    ) -> DueNames:
        """Return those of many names that have due rows; all, if rows of unknown tasks fill the
        window.

        Full claims share an answer, and begin where it begins: dead entries of the index lie
        before. Race: a row may come due after the answer that is more urgent, or older. It waits
        for ``SHARED`` at most.
        """
        began = self.dialect.clock.elapsed()
        if self._asked[0] is names and self._left >= limit and began < self._shared_until:
            self._left -= limit
            return self._found
        with self.look() as connection:
            due = self.dialect.due_names(connection, WINDOW, since)
        self._ask(names)
        found = {name for name, _, _ in due}
        own = found & self._asked[1]
        if len(own) < len(found) and len(due) >= WINDOW:
            self._left = 0
            return DueNames(names, is_level=False, since=since)
        is_level = len({priority for _, priority, _ in due}) < 2
        self._found = DueNames(
            sorted(own), is_level, min((at for _, _, at in due), default=since)
        )
        self._left = len(due) - limit
        self._shared_until = began + SHARED
        return self._found

    def _ask(self, names: Sequence[str]) -> None:
        if self._asked[0] is not names:
            self._asked = (names, frozenset(names))
            self._left = 0

    def forget(self) -> None:
        """Look for names again before the next claim."""
        self._left = 0

    def tasks_of(self, names: Sequence[str]) -> list[str]:
        """Return those of these names that are not jobs."""
        return [name for name in names if not self._is_job(name)]

    def _has_no_job(self, names: Sequence[str]) -> bool:
        return not any(map(self._is_job, names))

    def _is_job(self, name: str) -> bool:
        return (known := self.definitions.get(name)) is not None and known.is_job

    def look(self) -> AbstractContextManager[sa.Connection]:
        """Return a connection for one statement."""
        return self.database.alone(self.database.claims)


def without(names: Sequence[str], full: frozenset[str]) -> Sequence[str]:
    return [name for name in names if name not in full] if full else names


class Taken(NamedTuple):
    """How many rows a claim has found, the claims that may start, and the slots that will not
    run.
    """

    found: int
    claims: list[Claim]
    skipped: list[tuple[Row, Gap]]


class Claims:
    """Claims what is due."""

    def __init__(self, store: Store) -> None:
        self.dialect = store.dialect
        self._due = store.due
        self.definitions: Mapping[str, Definition] = store.definitions
        self.transaction = store.transaction
        self.warnings = store.warnings
        self.poll: timedelta = store.poll
        self._gates = store.gates
        #: Jobs whose new slots are all decided about, or pass a gate, before they enter the
        #: ledger.
        self._weighed = self._gates.names.union(
            name for name, found in self.definitions.items() if found.is_weighed
        )
        self.strict: frozenset[str] = frozenset(
            name for name, found in self.definitions.items() if found.gives_up
        )
        #: What decides about late slots of a job that no gate may stop: jobs with the same share a
        #: decision.
        self.policies = {
            name: (found.catch_up, found.start_within)
            for name, found in self.definitions.items()
            if found.is_job and self._gates.late is None and name not in self._gates.names
        }
        self._batch_size = BatchSize(BATCH)
        #: Whether the last claim of one-time tasks has seen due slots; True if it found no task.
        self.slots_may_be_due = True
        #: The tasks of the rows that the last claim has refused or found at a limit, one for each
        #: row.
        self.refused: list[str] = []

    def claim_tasks(
        self,
        holder: str,
        limit: int,
        *,
        lease: timedelta,
        names: Sequence[str],
        ranges: Sequence[Range] | None = None,
    ) -> list[Claim]:
        """Claim up to ``limit`` due one-time tasks; not those whose holder has died before.

        ``ranges``: rows before these cursors are left to a claim without them; see
        ``queue_cursors.py``.
        """
        self.refused = []
        names = without(names, full := self._gates.full.names())
        if full and ranges is not None:
            ranges = [one for one in ranges if one.task_name not in full]
        if limit <= 0 or not names:
            return []
        request = self._request(
            holder, names, min(limit, BATCH), lease, lost=0, ranges=ranges
        )
        is_limited = self._has_limited(names)
        try:
            is_single = self.dialect.is_one_statement and not is_limited
            with self._due.look() if is_single else self.transaction() as connection:
                if is_limited:
                    request = self._within_limits(request, connection)
                    if not request.names:
                        return []
                rows, self.slots_may_be_due = self.dialect.claim_tasks(connection, request)
                if flawed := [(row, row.flaw) for row in rows if row.flaw]:
                    rows = [row for row in rows if row.flaw is None]
                limited = [row for row in rows if row.task_name in self._gates.limited]
                if limited:
                    at = limited[0].last_heartbeat or limited[0].execution_time
                    refused = self._gates.admit(limited, at, connection)
                    self._turn_away(connection, limited, refused)
                    rows = [row for row in rows if row.key not in refused]
        except Exception as error:
            if not is_about_a_row(error):
                raise
            return self._claim_row_by_row(request, IS_TASK).claims
        if flawed:
            with self.transaction() as connection:
                self.refuse(connection, flawed, self.dialect.now(connection))
        return [
            Claim(
                row=row,
                holder=holder,
                lease=lease,
                claimed_at=row.last_heartbeat or row.execution_time,
            )
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
    ) -> Taken:
        """Claim up to ``limit`` due slots.

        Rows with nothing to run move on in the same transaction. At most ``lost`` rows, also of
        one-time tasks, are rows whose holder has died before.
        """
        is_level = False
        self.refused = []
        are_many = len(names) > MANY
        since = self._due.since(names)
        if are_many:
            names, is_level, since = self._due.names(names, limit, since)
        names = without(names, self._gates.full.names())
        if not names:
            return Taken(0, [], [])
        size = min(limit, self._batch_size.size)
        request = self._request(
            holder, names, size, lease, lost=lost, is_level=is_level, since=since
        )
        try:
            taken = self._claim(request)
        except Exception as error:
            if not is_about_a_row(error):
                raise
            taken = self._claim_row_by_row(request)
        if are_many and taken.found < size:
            self._due.forget()
        return taken

    def claim_row(self, holder: str, key: Key, *, lease: timedelta) -> Taken:
        """Claim this row alone, as ``claim_slots`` does; quarantine it if it cannot be claimed."""
        return self._claim_one(self._request(holder, [key.task_name], 1, lease), key)

    def _request(
        self, holder: str, names: Sequence[str], limit: int, lease: timedelta, **others: Any
    ) -> ClaimRequest:
        weighed = [name for name in names if name in self._weighed] if self._weighed else ()
        return ClaimRequest(
            holder=holder,
            names=names,
            limit=limit,
            lease=lease,
            strict=self.strict,
            weighed=weighed,
            late=self._gates.late,
            **others,
        )

    def _within_limits(
        self, request: ClaimRequest, connection: sa.Connection
    ) -> ClaimRequest:
        """Bound the claim of tasks by the places that are free now; leave out tasks without one."""
        room = self._gates.room(request.names, connection)
        full = frozenset(name for name, left in room.items() if left == 0)
        ranges = request.ranges
        if full and ranges is not None:
            ranges = [one for one in ranges if one.task_name not in full]
        most = {name: left for name, left in room.items() if 0 < left < request.limit}
        return request._replace(
            names=without(request.names, full), ranges=ranges, most=most
        )

    def _claim(self, request: ClaimRequest) -> Taken:
        with self.transaction() as connection:
            if not (found := self.dialect.claim(connection, request)):
                return Taken(0, [], [])
            now = found[0][1]
            begun = self.dialect.clock.elapsed()
            limited: list[Row] = []
            refused: Mapping[Key, Refusal] = {}
            if self._gates.limited:
                limited = [
                    row for row, _, _ in found if row.task_name in self._gates.limited
                ]
                refused = self._gates.admit(limited, now, connection, Moment.CLAIM)
                self._turn_away(connection, limited, refused)
            late = [
                row
                for row, _, entered in found
                if row.key not in refused and not (entered and _can_read(row))
            ]
            later = (
                LateClaims(self, self._gates, connection, now, request) if late else None
            )
            decided = dict[Key, Row | None].fromkeys(refused)
            if later:
                decided |= later.start(late)
            started = [
                one for row, _, _ in found if (one := decided.get(row.key, row)) is not None
            ]
            if limited:
                ended = [
                    row
                    for row in limited
                    if row.key not in refused and decided.get(row.key, row) is None
                ]
                self._gates.give_back(ended, now, connection, Moment.CLAIM)
            self._batch_size.learn(
                len(found), len(late), self.dialect.clock.elapsed() - begun, request.lease
            )
        claims = [
            Claim(row=row, holder=request.holder, lease=request.lease, claimed_at=now)
            for row in started
        ]
        if later is None:
            return Taken(len(found), claims, [])
        return Taken(len(found) - later.left, claims, later.skipped)

    def _claim_row_by_row(self, request: ClaimRequest, kind: str = HAS_SLOT) -> Taken:
        """Claim row by row, and quarantine the row that makes the claim of the batch fail."""
        with self.transaction() as connection:
            keys = self.dialect.due_keys(connection, request, kind)
        all_taken = Taken(len(keys), [], [])
        for key in keys:
            if len(self.refused) >= MOST_APART:
                break
            try:
                taken = self._claim_one(request, key)
            except SQLAlchemyError:
                if not all_taken.claims:
                    raise
                break  # what is claimed must be returned
            all_taken.claims.extend(taken.claims)
            all_taken.skipped.extend(taken.skipped)
        return all_taken

    def _claim_one(self, request: ClaimRequest, key: Key) -> Taken:
        one = request._replace(
            names=[key.task_name],
            limit=1,
            lost=1,
            instance=key.task_instance,
            is_level=False,
        )
        try:
            return self._claim(one)
        except Exception as error:
            if not is_about_a_row(error):
                raise
            self.note([key], describe_error(error))
            with self.transaction() as connection:
                at = Transaction(connection, self.dialect, self.dialect.now(connection))
                quarantine(at, key, describe_error(error))
            return Taken(0, [], [])

    def refuse(
        self, connection: sa.Connection, bad: Sequence[tuple[Row, str]], now: datetime
    ) -> None:
        """Let go of claimed rows that must not run, each with its flaw."""
        changes = [
            Change(held=Held(row=row, now=now), transition=refuse(row, now, flaw))
            for row, flaw in bad
        ]
        self.dialect.release(connection, changes)
        for name in {row.task_name for row, _ in bad}:
            some = [(row.key, flaw) for row, flaw in bad if row.task_name == name]
            self.note([key for key, _ in some], some[-1][1])

    def note(self, keys: Sequence[Key], problem: str) -> None:
        """Count these rows of one task; log a line about it if none was logged a moment ago."""
        self.refused += [key.task_name for key in keys]
        (name, instance), problem = keys[-1], f"{problem:.1000}"
        if rows := self.warnings.count(name, problem, len(keys)):
            logger.warning(
                "%s: rows that are quarantined: %d; the last is %r: %s",
                name,
                rows,
                instance,
                problem,
            )

    def _turn_away(
        self, connection: sa.Connection, rows: Sequence[Row], refused: Mapping[Key, Refusal]
    ) -> None:
        """Release the claimed rows of limited tasks that a gate has refused."""
        stopped = [claim_of(row) for row in rows if row.key in refused]
        if not stopped:
            return
        changes = []
        for held in self.dialect.hold(connection, stopped, wait=False):
            answer = refused[held.row.key]
            change = Transition(label=Release.MOVED_ON, row=None)
            if isinstance(answer, Later):
                change = defer(held.row, answer.due, answer.reason)
            # Not by place: a slot that has entered the ledger is undone there.
            changes.append(Change(held=replace(held, place=None), transition=change))
        expect(len(changes), len(stopped), stopped[0].row)
        self.dialect.release(connection, changes)
        self.refused += [claim.row.task_name for claim in stopped]

    def _has_limited(self, names: Sequence[str]) -> bool:
        limited = self._gates.limited
        return bool(limited) and not limited.isdisjoint(names)


def _can_read(row: Row) -> bool:
    """Race: during a deploy a newer release plans rows with schedules that this one does not
    know.
    """
    if row.flaw is not None:
        return False
    try:
        return not row.is_plan or parse_schedule(row.schedule or "-") is not None
    except InvalidSchedule:
        return False


#: The size of the first claim: it is not known yet what a late slot costs.
FIRST = 100
#: How long decisions of one claim may take; at most this part of its lease.
LONGEST = timedelta(seconds=1)
PART_OF_LEASE = 8
#: Decisions that take less than this part of it say nothing about their number: round trips take
#: as long.
NOTHING = 20


class BatchSize:
    """How many due slots a claim takes, up to ``most``: as many late ones as it can decide about
    in a moment.

    Race: a claim's lease runs while it decides, and nothing starts before its commit. If decisions
    took that long, the claim would be handed back as a whole, again and again. Full claims of
    slots on time grow, and those that were decided at once.
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
