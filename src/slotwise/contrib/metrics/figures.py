"""All figures that slotwise exports: names, units, labels, and how those of several processes
combine.

A snapshot is plain data, so that a supervisor can add up what its children report. Nothing here
needs a library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias


class Kind(StrEnum):
    """What a figure is: it only grows, it goes up and down, or it is a distribution."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Combine(StrEnum):
    """How the same figure of several processes becomes one."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


#: Upper bounds of the buckets, in seconds and in rows; a last bucket takes the rest.
SECONDS: Final = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    1800.0,
    7200.0,
)
ROWS: Final = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure. The name of a counter gets the suffix ``_total`` in Prometheus."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    combine: Combine = Combine.SUM
    buckets: tuple[float, ...] = ()
    #: It describes the cluster: every worker reports the same, so dashboards take the maximum over
    #: workers.
    is_of_cluster: bool = False


def _counter(name: str, help: str, *labels: str) -> Figure:
    return Figure(name, Kind.COUNTER, help, labels)


def _gauge(
    name: str,
    help: str,
    *labels: str,
    combine: Combine = Combine.SUM,
    of_cluster: bool = False,
) -> Figure:
    return Figure(name, Kind.GAUGE, help, labels, combine, is_of_cluster=of_cluster)


def _histogram(
    name: str, help: str, *labels: str, buckets: tuple[float, ...] = SECONDS
) -> Figure:
    return Figure(name, Kind.HISTOGRAM, help, labels, buckets=buckets)


_ALL: Final = (
    _counter(
        "slotwise_attempts",
        "Attempts that have ended, by outcome",
        "name",
        "kind",
        "outcome",
        "reason",
    ),
    _counter("slotwise_slots_skipped", "Slots that did not run", "name", "reason"),
    _counter("slotwise_claims_lost", "Claims of this worker that were lost", "name"),
    _counter(
        "slotwise_takeovers",
        "Claims of dead workers that this worker has taken over",
        "name",
        "outcome",
    ),
    _histogram(
        "slotwise_start_lateness_seconds",
        "From a slot's time to the start of its first attempt",
        "name",
    ),
    _histogram(
        "slotwise_queue_wait_seconds",
        "From the due time to the start of the handler",
        "name",
        "kind",
    ),
    _histogram(
        "slotwise_duration_seconds", "How long handlers have run", "name", "kind"
    ),
    _histogram("slotwise_claim_seconds", "How long claim statements have taken"),
    _histogram("slotwise_claim_batch_size", "Rows per claim statement", buckets=ROWS),
    _histogram("slotwise_settlement_seconds", "How long settlements have taken"),
    _histogram(
        "slotwise_settlement_batch_size", "Attempts per settlement", buckets=ROWS
    ),
    _counter("slotwise_database_outages", "How often the database was lost"),
    _counter(
        "slotwise_pool_waits", "How often a thread waited for a database connection"
    ),
    _counter(
        "slotwise_pool_wait_seconds",
        "Time that threads waited for a database connection",
    ),
    _gauge("slotwise_pool_connections", "Database connections of the pools", "state"),
    _gauge("slotwise_workers", "Worker processes that report"),
    _gauge(
        "slotwise_ready",
        "1 while the worker runs and reaches the database",
        combine=Combine.MIN,
    ),
    _gauge(
        "slotwise_shard_running",
        "1 while the worker of a shard runs in this process; other figures are of all shards",
        "shard",
        combine=Combine.MAX,
    ),
    _gauge("slotwise_draining", "1 while the worker drains", combine=Combine.MAX),
    _gauge("slotwise_capacity", "Handlers that can run at a time"),
    _gauge("slotwise_busy", "Handlers that run now"),
    _gauge(
        "slotwise_hanging",
        "Handlers that were asked to stop, for their timeout or otherwise, and still run",
        "name",
    ),
    _gauge(
        "slotwise_running_seconds",
        "How long the oldest running handler of a name has run",
        "name",
        combine=Combine.MAX,
    ),
    _gauge(
        "slotwise_claims_held",
        "Claims that the worker holds: handlers that run, wait to start, or are settled",
    ),
    _gauge(
        "slotwise_heartbeat_age_seconds",
        "Time since the last successful heartbeat",
        combine=Combine.MAX,
    ),
    _gauge(
        "slotwise_lease_left_seconds",
        "What is left of the shortest lease of a held claim",
        combine=Combine.MIN,
    ),
    _gauge(
        "slotwise_clock_drift_seconds",
        "How far this host's clock is off the database's",
        combine=Combine.MAX,
    ),
    _gauge(
        "slotwise_loop_busy_seconds",
        "How long a loop's current round has lasted",
        "loop",
        combine=Combine.MAX,
    ),
    _gauge(
        "slotwise_database_up",
        "1 if the database answered the last reading",
        combine=Combine.MIN,
    ),
    _gauge(
        "slotwise_backlog",
        "Rows that are due and not claimed; a lower bound above 10,000",
        "name",
        combine=Combine.MAX,
        of_cluster=True,
    ),
    _gauge(
        "slotwise_oldest_due_age_seconds",
        "How long the oldest due row of a name has waited",
        "name",
        combine=Combine.MAX,
        of_cluster=True,
    ),
    _gauge(
        "slotwise_backlog_age_seconds",
        "How long the oldest due row of all has waited; 0 if nothing waits",
        combine=Combine.MAX,
        of_cluster=True,
    ),
    _gauge(
        "slotwise_since_success_seconds",
        "Time since a job's last success or, if there is none, since it was planned",
        "name",
        combine=Combine.MIN,
        of_cluster=True,
    ),
    _gauge(
        "slotwise_overdue_seconds",
        "Time since the first expected slot of a job without a success; 0 if all is well",
        "name",
        combine=Combine.MIN,
        of_cluster=True,
    ),
    _gauge(
        "slotwise_paused_seconds",
        "How long a name, or the first of its instances, has been paused",
        "name",
        combine=Combine.MAX,
        of_cluster=True,
    ),
    _gauge(
        "slotwise_dead_tasks",
        "Dead rows of a name, which are not retried",
        "name",
        combine=Combine.MAX,
        of_cluster=True,
    ),
    _gauge(
        "slotwise_usual_duration_seconds",
        "95th percentile of a week's runs, of jobs that run for more than a minute now",
        "name",
        combine=Combine.MAX,
        of_cluster=True,
    ),
    _gauge(
        "slotwise_oldest_snapshot_seconds",
        "Age of the oldest snapshot that the role may see; it keeps vacuum from dead rows",
        combine=Combine.MAX,
        of_cluster=True,
    ),
)
FIGURES: Final = {figure.name: figure for figure in _ALL}

#: A value, or for a histogram the count of each bucket, the last one for the rest, and the sum.
Value: TypeAlias = "float | tuple[Sequence[int], float]"
#: By figure and label values.
Snapshot: TypeAlias = dict[str, dict[tuple[str, ...], Value]]


def combined(snapshots: Iterable[Snapshot]) -> Snapshot:
    """Return one snapshot for several processes."""
    result: Snapshot = {}
    for snapshot in snapshots:
        for name, samples in snapshot.items():
            known = result.setdefault(name, {})
            for labels, value in samples.items():
                known[labels] = (
                    value
                    if labels not in known
                    else _combined(FIGURES[name], known[labels], value)
                )
    return result


def _combined(figure: Figure, one: Value, other: Value) -> Value:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return [a + b for a, b in zip(one[0], other[0], strict=True)], one[1] + other[
            1
        ]
    assert not isinstance(one, tuple)
    assert not isinstance(other, tuple)
    match figure.combine:
        case Combine.SUM:
            return one + other
        case Combine.MAX:
            return max(one, other)
        case Combine.MIN:
            return min(one, other)


def as_plain(snapshot: Snapshot) -> dict[str, list[list[object]]]:
    """Return the snapshot as data for JSON."""
    return {
        name: [[list(labels), value] for labels, value in samples.items()]
        for name, samples in snapshot.items()
    }


def from_plain(plain: Mapping[str, Sequence[object]]) -> Snapshot:
    """Return what ``as_plain`` was given; figures that this version does not know are left out."""
    return {
        name: dict(map(_sample, samples))
        for name, samples in plain.items()
        if name in FIGURES
    }


def _sample(sample: object) -> tuple[tuple[str, ...], Value]:
    assert isinstance(sample, list)
    labels, value = sample
    return tuple(labels), value if isinstance(value, int | float) else (
        value[0],
        value[1],
    )
