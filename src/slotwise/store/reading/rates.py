"""How often a job runs and fails, how long it takes, and how late it starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from slotwise.model.records import RECURRING
from slotwise.model.values import Value
from slotwise.model.vocabulary import ENDED_BADLY, Outcome
from slotwise.store.reading.queries import reading
from slotwise.store.reading.windows import outcome_counts
from slotwise.store.schema.rows import utc
from slotwise.store.schema.tables import OF_INSTANCES
from slotwise.store.slots.store import Store

DAY = timedelta(days=1)
WEEK = timedelta(days=7)
#: Slots of the ledger from which the durations are estimated, the newest ones.
NEWEST = 500
#: Outcomes in the strip.
STRIP = 20
_SIGNS = {Outcome.SUCCEEDED: "✓", Outcome.CANCELLED: "·", Outcome.SKIPPED: "·"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate(Value):
    """Of a span of time: how many slots ran, how many of these did not succeed, how many did not
    run; and the median and 95th percentile of duration and lateness, None without a run.
    """

    runs: int = 0
    failures: int = 0
    skipped: int = 0
    duration_p50: timedelta | None = None
    duration_p95: timedelta | None = None
    lateness_p50: timedelta | None = None
    lateness_p95: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRates(Value):
    """A job's last 24 hours and seven days, and the last 20 outcomes, the newest last: ✓ succeeded,
    ✗ failed, · cancelled or skipped.
    """

    job: str
    day: Rate
    week: Rate
    strip: str


_RUNS = """
SELECT slot, outcome, started, started_before, finished FROM {slots}
WHERE task_name = :name AND {family} AND slot >= :since AND slot <= :now
    AND finished IS NOT NULL AND origin <> 'task'
ORDER BY slot DESC LIMIT :most"""


def rates(store: Store, job: str) -> JobRates:
    """Return the rates of a job with its instances: counts by the hour, durations and lateness
    from its newest slots.
    """
    now = store.now()
    given = {"name": job, "since": now - WEEK, "now": now, "most": NEWEST}
    found = list[sa.RowMapping]()
    with reading(store) as at:
        for family in (f"task_instance = '{RECURRING}'", OF_INSTANCES):
            found += at.read(_RUNS, given, family=family)
    found.sort(key=lambda row: utc(row["slot"]), reverse=True)
    signs = [_SIGNS.get(row["outcome"], "✗") for row in found[:STRIP]]
    return JobRates(
        job=job,
        day=_rate(store, job, now - DAY, now, found),
        week=_rate(store, job, now - WEEK, now, found),
        strip="".join(reversed(signs)),
    )


def _rate(
    store: Store,
    job: str,
    since: datetime,
    now: datetime,
    newest: Sequence[sa.RowMapping],
) -> Rate:
    runs = failures = skipped = 0
    for one in outcome_counts(store, since, now, job=job):
        if one.outcome == Outcome.SKIPPED:
            skipped += one.count
            continue
        runs += one.count
        if one.outcome in ENDED_BADLY:
            failures += one.count
    recent = [row for row in newest if utc(row["slot"]) >= since and row["started"]]
    times = _times(recent)
    return Rate(runs=runs, failures=failures, skipped=skipped, **times)


def _times(runs: Sequence[sa.RowMapping]) -> dict[str, timedelta | None]:
    durations = sorted(row["finished"] - row["started"] for row in runs)
    lateness = sorted(_lateness(row) for row in runs)
    return {
        "duration_p50": _quantile(durations, 50),
        "duration_p95": _quantile(durations, 95),
        "lateness_p50": _quantile(lateness, 50),
        "lateness_p95": _quantile(lateness, 95),
    }


def _lateness(row: sa.RowMapping) -> timedelta:
    late: timedelta = (row["started_before"] or row["started"]) - row["slot"]
    return max(late, timedelta(0))


def _quantile(ordered: Sequence[timedelta], percent: int) -> timedelta | None:
    if not ordered:
        return None
    return ordered[(len(ordered) - 1) * percent // 100]
