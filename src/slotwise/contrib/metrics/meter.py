"""Counts what a worker does, as plain numbers per name, outcome and bucket; they are shown when
they are asked for.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

from slotwise import ConfigurationError, JobRegistry
from slotwise.contrib.metrics.figures import ROWS, SECONDS, Snapshot, Value
from slotwise.contrib.metrics.health import ProbeResult, WorkerHealth, busy_for
from slotwise.inspect import Backlog, Inspection, SinceSuccess, Trouble
from slotwise.spi import (
    REASONS,
    BatchClaimed,
    BatchSettled,
    BatchSkipped,
    ClaimLostEvent,
    DatabaseLost,
    Event,
    Finished,
    HeartbeatSent,
    Outcome,
    Reaped,
    SlotsSkipped,
    SlotsSuperseded,
    Worker,
    elapsed,
)

logger = logging.getLogger("slotwise.metrics")

#: The label of names beyond the limit, and of reasons that no code has registered.
OTHER: Final = "other"
MAX_NAMES: Final = 1000
#: A reading of the tables serves all scrapes within this time, in seconds; an older one is not
#: shown after a while.
FRESH = 10.0
STALE = 60.0
#: How long a handler runs before its usual duration is read, and of how many jobs it is.
LONG: Final = timedelta(minutes=1)
SOME: Final = 20
#: How long a scrape waits for a reading, in seconds.
PATIENCE: Final = 2.0


class Distribution:
    """Counts per bucket, and their sum."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    @property
    def value(self) -> Value:
        return list(self.counts), self.total


class _Named:
    """What is counted of one name, apart for its slots and its one-time tasks."""

    __slots__ = ("duration", "late", "others", "succeeded", "waits")

    def __init__(self) -> None:
        self.succeeded = 0
        #: By outcome and reason.
        self.others: Counter[tuple[str, str]] = Counter()
        self.late = Distribution()
        self.waits = Distribution()
        self.duration = Distribution()


class Sums:
    """A listener that counts. It costs a batch of attempts one call, and each attempt about a
    microsecond.
    """

    def __init__(self, max_names: int = MAX_NAMES) -> None:
        if (
            isinstance(max_names, bool)
            or not isinstance(max_names, int)
            or not 1 <= max_names <= 100_000
        ):
            raise ConfigurationError(
                f"metrics_max_names={max_names!r:.40}: write a whole number from 1 to 100000"
            )
        self._max_names = max_names
        self._labels: set[str] = set()
        #: By name, of one-time tasks and of slots. Names beyond the limit share the entry of
        #: ``other``.
        self._tasks: dict[str, _Named] = {}
        self._slots: dict[str, _Named] = {}
        self._skipped: Counter[tuple[str, ...]] = Counter()
        self._lost: Counter[tuple[str, ...]] = Counter()
        self._taken_over: Counter[tuple[str, ...]] = Counter()
        self._outages = 0
        self._claim_time = Distribution()
        self._claim_size = Distribution(ROWS)
        self._settlement_time = Distribution()
        self._settlement_size = Distribution(ROWS)
        self._beat: tuple[float, float | None] | None = None
        self._react: dict[type[Event], Callable[..., None]] = {
            BatchSettled: self._settled,
            BatchClaimed: self._claimed,
            HeartbeatSent: self._heartbeat,
            SlotsSkipped: self._was_skipped,
            SlotsSuperseded: self._was_skipped,
            BatchSkipped: self._were_skipped,
            ClaimLostEvent: self._was_lost,
            Reaped: self._reaped,
            DatabaseLost: self._database_lost,
        }

    def wants(self, kind: type[Event]) -> bool:
        """Whether this listener counts events of this kind; the core makes no others for it."""
        return kind in self._react

    def __call__(self, event: Event) -> None:
        if (react := self._react.get(type(event))) is not None:
            react(event)

    # -- what happens -----------------------------------------------------------------------------

    def _settled(self, event: BatchSettled) -> None:
        """Count a batch. The loop is written for speed: most handlers end within the first
        bucket.
        """
        self._settlement_time.add(event.took.total_seconds())
        self._settlement_size.add(event.count)
        slots = self._slots
        tasks = self._tasks
        bounds = SECONDS
        shortest = SECONDS[0]
        for attempt in event.succeeded:
            claim = attempt.claim
            row = claim.row
            name = row.task_name
            try:
                named = slots[name] if attempt.is_slot else tasks[name]
            except KeyError:
                named = self._enter(attempt)
            named.succeeded += 1
            if (times := attempt.ran) is not None:
                began, ended = times
                ran = ended - began
                seconds = named.duration
                seconds.counts[0 if ran <= shortest else bisect_left(bounds, ran)] += 1
                seconds.total += ran
                waited = (
                    (claim.claimed_at - row.execution_time).total_seconds()
                    + began
                    - attempt.since
                )
                seconds = named.waits
                seconds.counts[bisect_left(bounds, waited)] += 1
                seconds.total += waited
                if attempt.is_slot:
                    _lateness(named, attempt, began)
        for attempt, outcome, reason in event.others:
            self._ended_otherwise(attempt, outcome, _known(reason))

    def _ended_otherwise(self, attempt: Finished, outcome: str, reason: str) -> None:
        of_kind = self._slots if attempt.is_slot else self._tasks
        row = attempt.claim.row
        named = of_kind.get(row.task_name) or self._enter(attempt)
        named.others[outcome, reason] += 1
        if attempt.ran is None:
            return
        began, ended = attempt.ran
        named.duration.add(ended - began)
        before = attempt.claim.claimed_at - row.execution_time
        named.waits.add(before.total_seconds() + began - attempt.since)
        if attempt.is_slot:
            _lateness(named, attempt, began)

    def _enter(self, attempt: Finished) -> _Named:
        name = attempt.claim.row.task_name
        of_kind = self._slots if attempt.is_slot else self._tasks
        named = of_kind.setdefault(self.label(name), _Named())
        of_kind[name] = named
        return named

    def label(self, name: str) -> str:
        """Return the name, or ``other`` beyond the limit; the first names keep theirs."""
        if name not in self._labels:
            if len(self._labels) >= self._max_names:
                return OTHER
            self._labels.add(name)
        return name

    def _claimed(self, event: BatchClaimed) -> None:
        self._claim_time.add(event.took.total_seconds())
        self._claim_size.add(event.count)

    def _heartbeat(self, event: HeartbeatSent) -> None:
        self._beat = elapsed(), event.skew

    def _was_skipped(self, event: SlotsSkipped) -> None:
        self._skipped[self.label(event.job), _known(event.reason)] += event.count

    def _were_skipped(self, event: BatchSkipped) -> None:
        for key, gap in event.ranges:
            self._skipped[self.label(key.task_name), _known(gap.reason)] += gap.count

    def _was_lost(self, event: ClaimLostEvent) -> None:
        self._lost[self.label(event.job),] += 1

    def _reaped(self, event: Reaped) -> None:
        self._taken_over[self.label(event.job), event.outcome] += 1

    def _database_lost(self, event: DatabaseLost) -> None:
        self._outages += 1

    # -- what is shown ----------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return what was counted so far. A scrape may fall between a count and its sum; the next
        one has both.
        """
        found: Snapshot = {
            "slotwise_claim_seconds": {(): self._claim_time.value},
            "slotwise_claim_batch_size": {(): self._claim_size.value},
            "slotwise_settlement_seconds": {(): self._settlement_time.value},
            "slotwise_settlement_batch_size": {(): self._settlement_size.value},
            "slotwise_database_outages": {(): self._outages},
            "slotwise_slots_skipped": dict(self._skipped),
            "slotwise_claims_lost": dict(self._lost),
            "slotwise_takeovers": dict(self._taken_over),
            "slotwise_attempts": {},
            "slotwise_duration_seconds": {},
            "slotwise_queue_wait_seconds": {},
            "slotwise_start_lateness_seconds": {},
        }
        for kind, of_kind in (("slot", self._slots), ("task", self._tasks)):
            for name, named in list(of_kind.items()):
                if name in self._labels or name == OTHER:
                    _show(found, name, kind, named)
        return found

    def labelled(self, backlog: Sequence[Backlog]) -> dict[str, tuple[int, float]]:
        """Return count and age of the oldest row by label."""
        found: dict[str, tuple[int, float]] = {}
        for one in backlog:
            count, age = found.get(label := self.label(one.name), (0, 0.0))
            found[label] = count + one.waiting, max(age, one.oldest.total_seconds())
        return found

    def longest(self, spans: Mapping[str, timedelta]) -> dict[tuple[str, ...], Value]:
        """Return these spans in seconds by label; of those that share one, the longest."""
        found: dict[tuple[str, ...], Value] = {}
        for name, span in sorted(spans.items(), key=lambda one: one[1]):
            found[self.label(name),] = span.total_seconds()
        return found

    def added(self, counts: Mapping[str, int]) -> dict[tuple[str, ...], Value]:
        """Return these counts by label; those that share one are added up."""
        found: Counter[tuple[str, ...]] = Counter()
        for name, count in counts.items():
            found[self.label(name),] += count
        return dict(found)

    def heartbeat_age(self) -> float | None:
        """Seconds since the last successful heartbeat; None before the first."""
        return None if self._beat is None else elapsed() - self._beat[0]

    def drift(self) -> float | None:
        """How far this host's clock was off the database's at the last heartbeat, in seconds."""
        return (
            None if self._beat is None or self._beat[1] is None else abs(self._beat[1])
        )


def _running(worker: Worker) -> dict[str, timedelta]:
    """Return for how long the oldest running handler of each name has run."""
    now = elapsed()
    found = dict[str, timedelta]()
    for holding in worker.active_claims:
        if holding.started and not holding.ended:
            name = holding.claim.row.task_name
            span = timedelta(seconds=max(now - holding.since, 0.0))
            found[name] = max(span, found.get(name, span))
    return found


def _lateness(named: _Named, attempt: Finished, began: float) -> None:
    """A retry is not late: only a slot's first attempt counts."""
    row = attempt.claim.row
    if row.attempt == 1 and row.slot is not None:
        named.late.add(
            (attempt.claim.claimed_at - row.slot).total_seconds()
            + began
            - attempt.since
        )


def _known(reason: str | None) -> str:
    """Return a reason that some code has registered; a handler may end its slot with any text."""
    return "" if reason is None else str(reason) if reason in REASONS else OTHER


def _show(found: Snapshot, name: str, kind: str, named: _Named) -> None:
    if named.succeeded:
        found["slotwise_attempts"][name, kind, Outcome.SUCCEEDED.value, ""] = (
            named.succeeded
        )
    for (outcome, reason), count in list(named.others.items()):
        found["slotwise_attempts"][name, kind, str(outcome), reason] = count
    found["slotwise_duration_seconds"][name, kind] = named.duration.value
    found["slotwise_queue_wait_seconds"][name, kind] = named.waits.value
    if kind == "slot":
        found["slotwise_start_lateness_seconds"][name,] = named.late.value


@dataclass(frozen=True, slots=True)
class Reading:
    """What the tables said about the cluster; ``at``: when, in elapsed seconds."""

    at: float
    backlog: Sequence[Backlog] = ()
    since_success: Mapping[str, SinceSuccess] = field(default_factory=dict)
    troubles: Sequence[Trouble] = ()
    usual: Mapping[str, timedelta] = field(default_factory=dict)
    oldest_snapshot: timedelta | None = None
    is_up: bool = False


class ClusterReader:
    """Reads the cluster's figures from the tables, at most every ``FRESH`` seconds, and never
    blocks a scrape for long.

    A thread reads, because the database may answer nothing. Scrapes that come meanwhile get the
    last reading.
    """

    def __init__(
        self,
        inspect: Callable[[], Inspection],
        jobs: Callable[[], Sequence[str]],
        long: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """``long``: the jobs that have run for long, of which the usual duration is read."""
        self._inspect = inspect
        self._jobs = jobs
        self._long = long
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._last: Reading | None = None

    def read(self) -> Reading:
        """Return a reading that is fresh, if the database answers in time; else the last one."""
        with self._lock:
            last = self._last
            thread = self._thread
            if last is not None and elapsed() - last.at < FRESH:
                return last
            if thread is None or not thread.is_alive():
                thread = self._thread = threading.Thread(
                    target=self._read, name="slotwise-metrics", daemon=True
                )
                thread.start()
        thread.join(PATIENCE)
        last = self._last or Reading(0.0)
        return replace(last, is_up=False) if thread.is_alive() else last

    def _read(self) -> None:
        at = elapsed()
        last = self._last
        try:
            inspect = self._inspect()
            self._last = Reading(
                at,
                inspect.backlog(),
                inspect.since_success(self._jobs()),
                inspect.troubles(),
                _usual(inspect, self._long()),
                inspect.database().oldest_snapshot,
                is_up=True,
            )
        except Exception as error:
            logger.debug("the figures of the cluster cannot be read: %s", error)
            self._last = Reading(at) if last is None else replace(last, is_up=False)


def _usual(inspect: Inspection, jobs: Sequence[str]) -> dict[str, timedelta]:
    """Return the usual durations of these jobs, of those that have run before."""
    found = {name: inspect.rates(name).week.duration_p95 for name in jobs}
    return {name: span for name, span in found.items() if span is not None}


class Metrics:
    """All figures of a registry's worker, and those of the cluster that it reads from the tables.

    Create it before the worker starts: it adds a listener to the registry. ``max_names`` names of
    jobs and tasks get separate labels, the first ones; all others share the label ``other``.
    """

    def __init__(
        self,
        registry: JobRegistry,
        *,
        max_names: int = MAX_NAMES,
        stuck_after: timedelta | str | None = None,
        worker: Callable[[], Worker | None] | None = None,
    ) -> None:
        """``stuck_after``: see ``WorkerHealth``. ``worker``: by default, the registry's running
        worker.
        """
        self.registry = registry
        self._sums = Sums(max_names)
        registry.listen(self._sums)
        self._worker = worker or (lambda: registry.worker)
        self.health = WorkerHealth(self._worker, stuck_after)
        self._cluster = ClusterReader(
            lambda: registry.inspect,
            lambda: list(registry.definitions),
            self._long,
        )

    def check(self) -> ProbeResult:
        """Return whether the worker is alive and ready; asks no database."""
        return self.health.check()

    def label(self, name: str) -> str:
        """Return the label of a job's or task's name: the name, or ``other`` beyond
        ``max_names``.
        """
        return self._sums.label(name)

    def counted(self) -> Snapshot:
        """Return what this process has counted, without gauges; asks no database."""
        return self._sums.snapshot()

    def snapshot(self) -> Snapshot:
        """Return all figures. Waits at most two seconds for the database."""
        found = self._sums.snapshot()
        if (worker := self._worker()) is not None:
            found |= self._of_worker(worker)
        return found | self._of_cluster()

    def _of_worker(self, worker: Worker) -> Snapshot:
        held = [holding for holding in worker.active_claims if not holding.ended]
        waits, waited = worker.database.pool_waits
        in_use, idle = worker.database.pool_connections
        optional = {
            "slotwise_heartbeat_age_seconds": self._sums.heartbeat_age(),
            "slotwise_clock_drift_seconds": self._sums.drift(),
            "slotwise_lease_left_seconds": min(
                (max(holding.lease_left().total_seconds(), 0.0) for holding in held),
                default=None,
            ),
        }
        return {
            "slotwise_pool_waits": {(): waits},
            "slotwise_pool_wait_seconds": {(): waited},
            "slotwise_pool_connections": {("in use",): in_use, ("idle",): idle},
            "slotwise_workers": {(): 1},
            "slotwise_ready": {(): int(self.check().is_ready)},
            "slotwise_draining": {(): int(worker.is_draining)},
            "slotwise_capacity": {(): worker.capacity},
            "slotwise_busy": {(): sum(holding.started for holding in held)},
            "slotwise_hanging": self._hanging(worker),
            "slotwise_running_seconds": self._sums.longest(_running(worker)),
            "slotwise_claims_held": {(): len(worker.active_claims)},
            "slotwise_loop_busy_seconds": {
                (loop.name,): busy_for(loop)
                for loop in worker.loops
                if loop.has_started
            },
            **{
                name: {(): value}
                for name, value in optional.items()
                if value is not None
            },
        }

    def _long(self) -> list[str]:
        """Return some jobs whose handlers have run in this process for longer than ``LONG``."""
        worker = self._worker()
        running = {} if worker is None else _running(worker)
        long = [name for name, span in running.items() if span > LONG]
        return [name for name in long if name in self.registry.definitions][:SOME]

    def _hanging(self, worker: Worker) -> dict[tuple[str, ...], Value]:
        hanging = Counter(
            self.label(holding.claim.row.task_name)
            for holding in worker.active_claims.hanging()
        )
        return {(name,): count for name, count in hanging.items()}

    def _of_cluster(self) -> Snapshot:
        reading = self._cluster.read()
        found: Snapshot = {"slotwise_database_up": {(): int(reading.is_up)}}
        if elapsed() - reading.at > STALE or not reading.at:
            return found
        if reading.oldest_snapshot is not None:
            age = reading.oldest_snapshot.total_seconds()
            found["slotwise_oldest_snapshot_seconds"] = {(): age}
        return found | self._of_backlog(reading) | self._of_names(reading)

    def _of_backlog(self, reading: Reading) -> Snapshot:
        waiting = self._sums.labelled(reading.backlog)
        ages = {name: age for name, (_, age) in waiting.items()}
        return {
            "slotwise_backlog": {
                (name,): count for name, (count, _) in waiting.items()
            },
            "slotwise_oldest_due_age_seconds": {
                (name,): age for name, age in ages.items()
            },
            "slotwise_backlog_age_seconds": {(): max(ages.values(), default=0.0)},
        }

    def _of_names(self, reading: Reading) -> Snapshot:
        since = dict[str, timedelta]()
        overdue = dict[str, timedelta]()
        paused = dict[str, timedelta]()
        for name, success in reading.since_success.items():
            since[name] = success.since
            overdue[name] = success.overdue
        dead = dict[str, int]()
        for trouble in reading.troubles:
            if trouble.dead:
                dead[trouble.name] = trouble.dead
            if trouble.paused is not None:
                paused[trouble.name] = trouble.paused
        longest = self._sums.longest
        return {
            "slotwise_since_success_seconds": longest(since),
            "slotwise_overdue_seconds": longest(overdue),
            "slotwise_paused_seconds": longest(paused),
            "slotwise_dead_tasks": self._sums.added(dead),
            "slotwise_usual_duration_seconds": longest(reading.usual),
        }
