"""Claims: due rows become held ones, in batches, and one by one if a row makes its batch fail.

``late_claims.py`` decides, in the claim's transaction, about those that need it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from slotwise.decide.going_back import defer, refuse
from slotwise.errors import InvalidSchedule
from slotwise.model.records import Claim, Gap, Key, Row, Transition
from slotwise.model.vocabulary import Release
from slotwise.schedules import parse_schedule
from slotwise.store.connect.database_errors import describe_error, is_about_a_row
from slotwise.store.dialects.port import ClaimRequest, Range
from slotwise.store.dialects.quarantine import quarantine
from slotwise.store.schema.rows import Change, Held, claim_of, expect
from slotwise.store.schema.tables import HAS_SLOT, IS_TASK
from slotwise.store.slots.due import without
from slotwise.store.slots.gates import Later, Moment
from slotwise.store.slots.late_claims import LateClaims
from slotwise.store.slots.tuning import (
    BATCH,
    FIRST,
    LONGEST,
    MANY,
    MOST_APART,
    NOTHING,
    PART_OF_LEASE,
)

if TYPE_CHECKING:
    from slotwise.jobs.definition import Definition
    from slotwise.store.slots.store import Store


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
        self._transact = store.transact
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
            if found.is_job
            and self._gates.late is None
            and name not in self._gates.names
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
        full = self.left_out()
        names = without(names, full)
        if limit <= 0 or not names:
            return []
        size = min(limit, BATCH)
        ranges = _of_others(ranges, full)
        request = self._request(holder, names, size, lease, lost=0, ranges=ranges)
        try:
            rows = self._take_tasks(request)
        except Exception as error:
            if not is_about_a_row(error):
                raise
            return self._claim_row_by_row(request, IS_TASK).claims
        return [
            Claim(
                row=row,
                holder=holder,
                lease=lease,
                claimed_at=row.last_heartbeat or row.execution_time,
            )
            for row in rows
        ]

    def _take_tasks(self, request: ClaimRequest) -> Sequence[Row]:
        """Return the claimed rows that may start."""
        limited = self._gates.limited
        if limited and not limited.isdisjoint(request.names):
            with self.transaction() as connection:
                rows = self._take_within_limits(request, connection)
        else:
            is_one = self.dialect.is_one_statement
            with self._due.reading() if is_one else self.transaction() as connection:
                rows, self.slots_may_be_due = self.dialect.claim_tasks(
                    connection, request
                )
        flawed = [(row, row.flaw) for row in rows if row.flaw]
        if not flawed:
            return rows
        with self._transact() as at:
            self.refuse(at.connection, flawed, at.now)
        return [row for row in rows if not row.flaw]

    def _take_within_limits(
        self, request: ClaimRequest, connection: sa.Connection
    ) -> Sequence[Row]:
        """Claim of each task with a limit no more than has a place now, and ask the gates."""
        room = self._gates.room(request.names, connection)
        full = frozenset(name for name, left in room.items() if left == 0)
        request = request._replace(
            names=without(request.names, full),
            ranges=_of_others(request.ranges, full),
            most={
                name: left for name, left in room.items() if 0 < left < request.limit
            },
        )
        if not request.names:
            return []
        rows, self.slots_may_be_due = self.dialect.claim_tasks(connection, request)
        sound = [row for row in rows if row.flaw is None]
        if sound:
            now = sound[0].last_heartbeat or sound[0].execution_time
            sound = [*self._admitted(connection, sound, now)]
        return [*sound, *(row for row in rows if row.flaw is not None)]

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
        since = self._due.since(names) if self._due.is_behind_others else None
        if are_many:
            names, is_level, since = self._due.names(names, limit, since)
        if full := self.left_out():
            names = without(names, full)
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

    def left_out(self) -> frozenset[str]:
        """Return the tasks that claims leave out now, as they were found at their limit."""
        full = self._gates.full
        return full.names() if full.until else frozenset()

    def claim_row(self, holder: str, key: Key, *, lease: timedelta) -> Taken:
        """Claim this row alone, as ``claim_slots`` does; quarantine it if it cannot be claimed."""
        return self._claim_one(self._request(holder, [key.task_name], 1, lease), key)

    def _request(
        self,
        holder: str,
        names: Sequence[str],
        limit: int,
        lease: timedelta,
        **others: Any,
    ) -> ClaimRequest:
        weighed = (
            [name for name in names if name in self._weighed] if self._weighed else ()
        )
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

    def _claim(self, request: ClaimRequest) -> Taken:
        with self.transaction() as connection:
            found = self.dialect.claim(connection, request)
            if not found:
                return Taken(0, [], [])
            now = found[0][1]
            begun = self.dialect.clock.elapsed()
            undecided = {
                row.key
                for row, _, is_entered in found
                if not (is_entered and _can_read(row))
            }
            rows: Sequence[Row] = [row for row, _, _ in found]
            rows = self._admitted(connection, rows, now, Moment.CLAIM)
            late = [row for row in rows if row.key in undecided] if undecided else []
            decided: Mapping[Key, Row | None] = {}
            skipped: list[tuple[Row, Gap]] = []
            count = len(found)
            if late:
                later = LateClaims(self, self._gates, connection, now, request)
                decided = later.start(late)
                skipped = later.skipped
                count -= later.left
                left = [row for row in late if decided[row.key] is None]
                self._gates.give_back(left, now, connection, Moment.CLAIM)
            took = self.dialect.clock.elapsed() - begun
            self._batch_size.learn(len(found), len(late), took, request.lease)
        if decided:
            started = (decided.get(row.key, row) for row in rows)
            rows = [row for row in started if row is not None]
        claims = [
            Claim(row=row, holder=request.holder, lease=request.lease, claimed_at=now)
            for row in rows
        ]
        return Taken(count, claims, skipped)

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
            with self._transact() as at:
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
        self.warnings.quarantined(keys, f"{problem:.1000}")

    def _admitted(
        self,
        connection: sa.Connection,
        rows: Sequence[Row],
        now: datetime,
        *moments: Moment,
    ) -> Sequence[Row]:
        """Ask the gates about the claimed rows of limited tasks, and release those that they
        refuse; return the others.
        """
        limited = self._gates.limited and [
            row for row in rows if row.task_name in self._gates.limited
        ]
        if not limited:
            return rows
        refused = self._gates.admit(limited, now, connection, *moments)
        stopped = [claim_of(row) for row in limited if row.key in refused]
        if not stopped:
            return rows
        changes = []
        for held in self.dialect.hold(connection, stopped, wait=False):
            answer = refused[held.row.key]
            change = Transition(label=Release.MOVED_ON, row=None)
            if isinstance(answer, Later):
                change = defer(held.row, answer.due, answer.reason)
            changes.append(Change(held=held, transition=change))
        expect(len(changes), len(stopped), stopped[0].row)
        self.dialect.release(connection, changes)
        self.refused += [claim.row.task_name for claim in stopped]
        return [row for row in rows if row.key not in refused]


def _of_others(
    ranges: Sequence[Range] | None, full: frozenset[str]
) -> Sequence[Range] | None:
    if ranges is None or not full:
        return ranges
    return [one for one in ranges if one.task_name not in full]


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
