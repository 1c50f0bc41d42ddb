"""The gates: what a claimed slot or task that is due passes before it starts.

They are asked in this order, by ``Gates`` alone:

| gate | what it keeps | is asked | what it takes |
|---|---|---|---|
| ``Limits`` | ``concurrency``, ``rate_limit`` | about all claimed rows | a start in the window |
| ``ConcurrentSlots`` | ``allow(max)``, ``cancel_previous`` | before the decision | nothing |
| ``MinInterval`` | ``min_interval`` | after the decision | nothing |
| ``RecoveryRate`` | ``recovery_rate`` | after the decision | a token |

``ConcurrentSlots`` comes before the decision because overlap and catch-up decide about a slot
without a place. If a later gate, or the ledger, refuses a start, a gate gives back what it took. A
gate is asked once for a batch, in the claim's transaction. It never waits for a lock: it answers
``Later``.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import ClassVar, Final, TypeAlias

import sqlalchemy as sa

from slotwise.jobs.definition import Definition
from slotwise.jobs.policies import Rate
from slotwise.jobs.steering import Skip
from slotwise.model.clock import Stopwatch
from slotwise.model.records import TICK, Claim, Key, Row, from_micros, to_micros
from slotwise.model.vocabulary import PLANNED, Origin, Reason
from slotwise.schedules.text import readable
from slotwise.settings.settings import Settings
from slotwise.store.dialects.conditions import among_newest
from slotwise.store.dialects.port import Dialect
from slotwise.store.schema.column_types import Instant
from slotwise.store.schema.rows import utc
from slotwise.store.schema.tables import Columns, Condition, Tables, is_detached
from slotwise.store.slots.tuning import BUSY, FULL_PAUSE, LATE, NEWEST, SLACK


@dataclass(frozen=True, slots=True)
class Later:
    """The row is due again at ``due``; no attempt is counted. The ledger keeps the reason of a
    slot that it has.
    """

    due: datetime
    reason: str | None = None


Refusal: TypeAlias = "Later | Skip"
Answer: TypeAlias = "Refusal | None"
#: The slot may start.
START: Final = None


class Moment(Enum):
    """When a gate is asked."""

    #: About each row that was claimed, also if its slot has entered the ledger already.
    CLAIM = auto()
    #: Before the decision about which slot of a plan row starts.
    DECISION = auto()
    #: About the slot that is to start.
    START = auto()


class Gate:
    """One rule that may stop a start. A gate overrides what differs; ``admit`` always does."""

    moment: ClassVar[Moment] = Moment.START
    #: Jobs whose new slots this gate may refuse: the claim does not enter those into the ledger.
    names: frozenset[str] = frozenset()

    def __init__(
        self,
        dialect: Dialect,
        definitions: Mapping[str, Definition],
        settings: Settings,
    ) -> None:
        self._dialect = dialect
        self._tables = dialect.tables
        self._definitions = definitions
        self.names = self.names.union(
            name for name, found in definitions.items() if self.may_refuse(found)
        )

    def may_refuse(self, job: Definition) -> bool:
        """Return whether ``names`` has this job."""
        return False

    def concerns(self, row: Row, now: datetime) -> bool:
        """Return whether this gate may stop the start of ``row``."""
        return row.is_plan and row.attempt == 1 and row.task_name in self.names

    def admit(
        self, rows: Sequence[Row], now: datetime, transaction: sa.Connection
    ) -> list[Answer]:
        """Return one answer per row, in order, and take what the admitted ones need."""
        raise NotImplementedError

    def give_back(
        self, rows: Sequence[Row], now: datetime, transaction: sa.Connection
    ) -> None:
        """Give back what ``admit`` has taken in this transaction for these rows, which do not
        start.
        """


class FullTasks:
    """The tasks that a claim of this process has found at their limit. Claims leave them out until
    a claim of ours ends, but for ``FULL_PAUSE`` at most: a place may come free elsewhere.

    Race: a claim may end between the count and ``add``. Its place is found after the pause.
    """

    def __init__(self, elapsed: Stopwatch) -> None:
        self._elapsed = elapsed
        #: Until when each is left out, in elapsed seconds.
        self.until: dict[str, float] = {}

    def add(self, names: Iterable[str]) -> None:
        until = self._elapsed() + FULL_PAUSE.total_seconds()
        self.until.update(dict.fromkeys(names, until))

    def ended(self, claims: Iterable[Claim]) -> None:
        """Forget the tasks of these claims, which have ended."""
        for claim in claims:
            self.until.pop(claim.row.task_name, None)

    def names(self) -> frozenset[str]:
        now = self._elapsed()
        for name, until in [*self.until.items()]:
            if until <= now:
                self.until.pop(name, None)
        return frozenset(self.until)


class Limits(Gate):
    """``concurrency`` counts the claims of a task, ``rate_limit`` its starts within the window,
    whatever their outcome. What finds no place goes back as it was.

    Race: two claims that count at once would both find the last place. ``admit`` counts under a
    lock of the task's name, which lasts until the transaction ends. So the second claim counts
    what the first has committed. It does not wait for the lock: without it, nothing starts.
    """

    moment = Moment.CLAIM

    def __init__(
        self,
        dialect: Dialect,
        definitions: Mapping[str, Definition],
        settings: Settings,
    ) -> None:
        super().__init__(dialect, definitions, settings)
        self.full = FullTasks(dialect.clock.elapsed)

    def may_refuse(self, job: Definition) -> bool:
        return job.is_limited

    def concerns(self, row: Row, now: datetime) -> bool:
        return row.task_name in self.names

    def room(
        self,
        names: Sequence[str],
        now: datetime | None,
        transaction: sa.Connection,
        claimed: Mapping[str, int],
    ) -> dict[str, int]:
        """Return how many of each of these limited tasks may start now, besides those that hold a
        place. ``claimed``: rows of this transaction, which hold none yet.
        """
        running = self._running(names, transaction)
        started = self._started(names, now, transaction)
        room: dict[str, int] = {}
        for name in names:
            task = self._definitions[name]
            left = [sys.maxsize]
            if task.concurrency is not None:
                held = running.get(name, 0) - claimed.get(name, 0)
                left.append(task.concurrency - held)
            if task.rate_limit is not None:
                left.append(task.rate_limit.count - started.get(name, 0))
            room[name] = max(min(left), 0)
        return room

    def _running(
        self, names: Sequence[str], transaction: sa.Connection
    ) -> Mapping[str, int]:
        tasks = self._tables.tasks.c
        bound = [
            name for name in names if self._definitions[name].concurrency is not None
        ]
        if not bound:
            return {}
        mine = tasks.picked, tasks.task_name.in_(bound)
        counts = sa.select(tasks.task_name, sa.func.count()).where(*mine)
        return _by_name(transaction, counts.group_by(tasks.task_name))

    def _started(
        self, names: Sequence[str], now: datetime | None, transaction: sa.Connection
    ) -> Mapping[str, int]:
        starts = self._tables.starts.c
        rates = {name: self._definitions[name].rate_limit for name in names}
        if not any(rates.values()):
            return {}
        now = now or self._dialect.now(transaction)
        within = [
            self._counts(name, rate, now) for name, rate in rates.items() if rate
        ]
        counts = sa.select(starts.task_name, sa.func.sum(starts.count))
        counts = counts.where(sa.or_(*within)).group_by(starts.task_name)
        return _by_name(transaction, counts)

    def admit(
        self, rows: Sequence[Row], now: datetime, transaction: sa.Connection
    ) -> list[Answer]:
        claimed = Counter(row.task_name for row in rows)
        names = sorted(claimed)
        locked = [name for name in names if self._dialect.alone(transaction, name)]
        # By the claim's time, which is that of its starts: later ones would count too few.
        room = self.room(locked, now, transaction, claimed)
        answers = list[Answer]()
        for row in rows:
            left = room.get(row.task_name, 0)
            room[row.task_name] = left - 1
            answers.append(START if left > 0 else Later(row.execution_time))
        self.full.add(name for name in claimed if room.get(name, -1) < 0)
        starting = [
            row for row, one in zip(rows, answers, strict=True) if one is START
        ]
        self._count_starts(starting, now, transaction)
        return answers

    def _count_starts(
        self, rows: Sequence[Row], now: datetime, transaction: sa.Connection
    ) -> None:
        starts = self._tables.starts
        for name, rate, count in self._counted(rows):
            transaction.execute(
                starts.delete().where(
                    starts.c.task_name == name, ~self._counts(name, rate, now)
                )
            )
            row = {
                "task_name": name,
                "at": _rounded_up(now, rate.grain),
                "count": count,
            }
            self._dialect.upsert(
                transaction,
                starts,
                row,
                lambda new: {"count": starts.c.count + new["count"]},
            )

    def give_back(
        self, rows: Sequence[Row], now: datetime, transaction: sa.Connection
    ) -> None:
        for name, rate, count in self._counted(rows):
            starts = self._tables.starts
            mine = [
                starts.c.task_name == name,
                starts.c.at == _rounded_up(now, rate.grain),
            ]
            transaction.execute(
                starts.update().where(*mine).values(count=starts.c.count - count)
            )

    def _counted(self, rows: Sequence[Row]) -> Iterable[tuple[str, Rate, int]]:
        """Yield the tasks of these rows that have a rate, and how many rows each has."""
        for name in sorted({row.task_name for row in rows}):
            if (rate := self._definitions[name].rate_limit) is not None:
                yield name, rate, sum(row.task_name == name for row in rows)

    def _counts(self, name: str, rate: Rate, now: datetime) -> Condition:
        """Whether a start of this task is within the window; a clock step back may have left one
        far in the future.
        """
        starts = self._tables.starts.c
        within = (starts.at > now - rate.window) & (starts.at < now + rate.window)
        return (starts.task_name == name) & within


def _by_name(
    transaction: sa.Connection, counts: sa.Select[str, int]
) -> dict[str, int]:
    return {name: int(count) for name, count in transaction.execute(counts)}


def _rounded_up(instant: datetime, grain: timedelta) -> datetime:
    """Round an instant up, so that no start counts for too short a time."""
    width = grain // TICK
    return from_micros(-(-to_micros(instant) // width) * width)


class ConcurrentSlots(Gate):
    """Slots of a job that run side by side: each takes a place until it is final.

    Race: two starts must not take the same place. Each has locked the plan row by its claim.
    """

    moment = Moment.DECISION

    def may_refuse(self, job: Definition) -> bool:
        return job.overlap.detaches

    def admit(
        self, rows: Sequence[Row], now: datetime, transaction: sa.Connection
    ) -> list[Answer]:
        taken = self._taken(rows, transaction)
        most = {
            row.task_name: self._definitions[row.task_name].overlap.max for row in rows
        }
        return [
            START if taken.get(row.key, 0) < most[row.task_name] else Later(now)
            for row in rows
        ]

    def _taken(
        self, rows: Sequence[Row], transaction: sa.Connection
    ) -> Mapping[Key, int]:
        """Return how many places the slots of these plans take."""
        tasks = self._tables.tasks.c
        plan = tasks.task_name, tasks.plan_instance
        taken = sa.select(*plan, sa.func.count()).where(
            tasks.task_name.in_({row.task_name for row in rows}),
            is_detached(tasks),
            tasks.plan_instance.in_({row.task_instance for row in rows}),
            tasks.origin.in_(PLANNED),
        )
        found = transaction.execute(taken.group_by(*plan))
        return {Key(name, instance): count for name, instance, count in found}


class MinInterval(Gate):
    """A slot of the schedule starts at least ``min_interval`` after the last start of its job.

    A settlement moves the due time already. This gate keeps the rule where an operator or a
    restore has set it, and after a start that an operator has requested: that start does not wait,
    the schedule's next slot does.

    Race: a start whose claim has not committed is not seen, nor with ``give_up`` one that is
    claimed and not marked.
    """

    def may_refuse(self, job: Definition) -> bool:
        return job.min_interval is not None

    def admit(
        self, rows: Sequence[Row], now: datetime, transaction: sa.Connection
    ) -> list[Answer]:
        tasks = self._tables.tasks.c
        key = tasks.task_name, tasks.task_instance
        starts = sa.select(*key, last_start(self._tables, *key, now)).where(
            tasks.task_name.in_({row.task_name for row in rows}),
            tasks.task_instance.in_({row.task_instance for row in rows}),
        )
        found = transaction.execute(starts)
        started = {Key(name, instance): utc(at) for name, instance, at in found if at}
        answers = list[Answer]()
        for row in rows:
            least = self._definitions[row.task_name].min_interval or timedelta(0)
            due = started.get(row.key, now - least) + least
            answers.append(START if now >= due else Later(due))
        return answers


def last_start(
    tables: Tables, name: object, instance: object, now: datetime
) -> sa.ScalarSelect[datetime]:
    """Return when a slot of this plan started last. After a clock step back, a start in the future
    does not count.
    """

    def mine(rows: Columns) -> list[Condition]:
        return [
            rows.task_name == name,
            rows.task_instance == instance,
            rows.started <= now,
        ]

    slots = tables.slots.c
    started = sa.select(sa.func.max(slots.started, type_=Instant))
    started = started.where(*mine(slots), among_newest(tables, mine, NEWEST))
    return started.correlate(tables.tasks).scalar_subquery()


_SECOND = timedelta(seconds=1)
BUCKET = "recovery"


class RecoveryRate(Gate):
    """At most ``recovery_rate`` late slots start in any second, in the whole cluster: a token
    bucket.

    The bucket is a row of ``scheduled_meta`` with two instants. ``full``: until when the starts so
    far use up the rate. ``promised``: until when rows that found no token expect theirs. Such a
    row comes back when a token is likely.

    Race: a lock gives the bucket to one transaction at a time, for ON CONFLICT would wait.

    Proof. Take the starts in the order of the lock, and a pause p of (1 s + 250 ms) / rate. With
    each start ``full`` rises to the start's instant and p, at least, and by p at least; and no
    start comes more than 250 ms before ``full``. So the n-th start after another comes no sooner
    than n * p - 250 ms after it, though claims may overtake each other on their way to the lock.
    Starts within one second are less than a second apart: n * p < 1.25 s, and with the first they
    are no more than the rate. A start's instant is the claim's "now", which is what the ledger
    says of when the slot started, unless ``give_up`` marks it later; a claim that never began
    takes that back (``record`` of a dialect).
    """

    def __init__(
        self,
        dialect: Dialect,
        definitions: Mapping[str, Definition],
        settings: Settings,
    ) -> None:
        super().__init__(dialect, definitions, settings)
        rate = settings.recovery_rate
        self._pause = (
            None if rate is None else TICK * -(-((_SECOND + SLACK) // TICK) // rate)
        )

    def concerns(self, row: Row, now: datetime) -> bool:
        return self._pause is not None and row.attempt == 1 and _is_late(row, now)

    def admit(
        self, rows: Sequence[Row], now: datetime, transaction: sa.Connection
    ) -> list[Answer]:
        assert self._pause is not None
        if not self._dialect.alone(transaction, BUCKET):
            return [Later(now + BUSY, Reason.RECOVERY)] * len(rows)
        (full, promised), answers = self._read(now, transaction), list[Answer]()
        for _ in rows:
            if _has_token(full, now):
                full = _taken(full, now, self._pause)
                answers.append(START)
            else:
                answers.append(Later(max(promised, full - SLACK), Reason.RECOVERY))
                promised = max(promised, full - SLACK) + self._pause
        self._write(full, promised, transaction)
        return answers

    def give_back(
        self, rows: Sequence[Row], now: datetime, transaction: sa.Connection
    ) -> None:
        assert self._pause is not None
        full, promised = self._read(now, transaction)  # the lock of ``admit`` lasts
        self._write(full - self._pause * len(rows), promised, transaction)

    def _read(
        self, now: datetime, transaction: sa.Connection
    ) -> tuple[datetime, datetime]:
        meta = self._tables.meta
        found = transaction.scalar(sa.select(meta.c.value).where(meta.c.key == BUCKET))
        full, promised = (
            (from_micros(int(word)) for word in found.split()) if found else (now, now)
        )
        # No start uses up the rate for so long: after a clock step back both are in the future.
        return (full, promised) if full < now + LATE else (now, now)

    def _write(
        self, full: datetime, promised: datetime, transaction: sa.Connection
    ) -> None:
        row = {"key": BUCKET, "value": f"{to_micros(full)} {to_micros(promised)}"}
        self._dialect.upsert(
            transaction, self._tables.meta, row, lambda new: {"value": new["value"]}
        )


def _is_late(row: Row, now: datetime) -> bool:
    """Return whether the row runs a missed slot, or a slot whose time is long past."""
    if (
        row.origin == Origin.CATCH_UP
        or not row.is_plan
        or row.slot is None
        or row.slot + LATE >= now
    ):
        return row.origin == Origin.CATCH_UP
    schedule = readable(row.schedule)
    return schedule is None or row.slot + schedule.wait(row.slot) + LATE < now


def _has_token(full: datetime, now: datetime) -> bool:
    return now + SLACK >= full


def _taken(full: datetime, now: datetime, pause: timedelta) -> datetime:
    return max(full, now) + pause


#: All gates in order.
ORDER: tuple[type[Gate], ...] = (Limits, ConcurrentSlots, MinInterval, RecoveryRate)


class Gates:
    """All gates of a process."""

    def __init__(
        self,
        dialect: Dialect,
        definitions: Mapping[str, Definition],
        settings: Settings,
    ) -> None:
        self._dialect = dialect
        self._gates = [make(dialect, definitions, settings) for make in ORDER]
        self._limits = next(gate for gate in self._gates if isinstance(gate, Limits))
        #: Jobs and tasks that a gate may stop; those of them that have a limit.
        self.names = frozenset[str]().union(*(gate.names for gate in self._gates))
        self.limited = self._limits.names
        self.full = self._limits.full
        #: A gate may stop any slot that is later than this.
        self.late = LATE if settings.recovery_rate is not None else None

    def room(self, names: Sequence[str], transaction: sa.Connection) -> dict[str, int]:
        """Return how many rows of each limited task among these a claim should take.

        Nothing is locked: ``admit`` counts again.
        """
        limited = [name for name in names if name in self.limited]
        now = self._dialect.now(transaction)
        room = self._limits.room(limited, now, transaction, {})
        self.full.add(name for name, left in room.items() if left == 0)
        return room

    def admit(
        self,
        rows: Sequence[Row],
        now: datetime,
        transaction: sa.Connection,
        *moments: Moment,
    ) -> dict[Key, Refusal]:
        """Ask each gate of these moments (all) about the rows that the gates before it admit;
        return the refusals.
        """
        refused: dict[Key, Refusal] = {}
        passed: list[Gate] = []
        for gate in self._of(moments):
            asked = [
                row
                for row in rows
                if row.key not in refused and gate.concerns(row, now)
            ]
            answers = gate.admit(asked, now, transaction) if asked else ()
            stopped: dict[Key, Refusal] = {}
            for row, answer in zip(asked, answers, strict=True):
                if answer is not START:
                    stopped[row.key] = answer
            for before in passed:
                _return(
                    before,
                    [row for row in asked if row.key in stopped],
                    now,
                    transaction,
                )
            refused |= stopped
            passed.append(gate)
        return refused

    def give_back(
        self,
        rows: Sequence[Row],
        now: datetime,
        transaction: sa.Connection,
        *moments: Moment,
    ) -> None:
        """Let the gates of these moments take back what they gave to rows that do not start."""
        for gate in self._of(moments):
            _return(gate, rows, now, transaction)

    def _of(self, moments: Sequence[Moment]) -> list[Gate]:
        return [gate for gate in self._gates if not moments or gate.moment in moments]


def _return(
    gate: Gate, rows: Sequence[Row], now: datetime, transaction: sa.Connection
) -> None:
    if own := [row for row in rows if gate.concerns(row, now)]:
        gate.give_back(own, now, transaction)
