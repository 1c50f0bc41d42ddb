"""How often a job runs and fails, how long it takes, and how late it starts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from slotwise.model.values import Value
from slotwise.model.vocabulary import ENDED_BADLY, Outcome
from slotwise.store.reading.queries import PAGE, ReadTransaction, reading
from slotwise.store.schema.rows import utc
from slotwise.store.slots.counts import hour_of
from slotwise.store.slots.store import Store

DAY = timedelta(days=1)
WEEK = timedelta(days=7)
#: Slots of the ledger from which the durations are estimated, the newest ones.
NEWEST = 500
#: The same for each job of a list.
NEWEST_OF_MANY = 50
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


#: The newest slots of each of these names. Its 500th is looked up once for each name.
_RUNS = """
SELECT s.task_name, s.slot, s.outcome, s.started, s.started_before, s.finished
FROM {names} AS n JOIN {slots} AS s ON s.task_name = n.name AND {of_s}
    AND s.slot <= :now AND s.finished IS NOT NULL AND s.origin <> 'task'
    AND s.slot >= coalesce((
        SELECT o.slot FROM {slots} AS o WHERE o.task_name = n.name AND {of_o}
        ORDER BY o.slot DESC LIMIT 1 OFFSET :others), :since)
WHERE s.slot >= :since ORDER BY s.slot DESC"""
_GIVEN = "SELECT CAST(:name{number} AS {{text}}) AS name"
_PLANNED = """(SELECT task_name AS name FROM {tasks}
                WHERE task_name IN :names AND task_instance = 'recurring')"""
#: Slots of jobs, and of their instances.
_FAMILIES = (
    ("s.task_instance = 'recurring'", "o.task_instance = 'recurring'"),
    ("s.task_instance <> 'recurring'", "o.task_instance <> 'recurring'"),
)
_COUNTS = """
SELECT task_name, outcome, hour >= :day AS is_of_day, {f}sum(count + pruned) AS number
FROM {counts} WHERE task_name IN :names AND hour >= :since AND hour < :now AND kind = 'slot'
GROUP BY task_name, outcome, hour >= :day"""


def rates(store: Store, job: str) -> JobRates:
    """Return the rates of a job with its instances, also under former names: counts by the hour,
    durations and lateness from its newest slots.
    """
    numbers = range(len(store.names_of(job)))
    given = " UNION ALL ".join(_GIVEN.format(number=number) for number in numbers)
    return _rates(store, [job], f"({given})", NEWEST)[job]


def rates_of(store: Store, jobs: Collection[str]) -> dict[str, JobRates]:
    """Return the rates of planned jobs, from fewer slots of each."""
    found = dict[str, JobRates]()
    names = sorted(jobs)
    for start in range(0, len(names), PAGE):
        found |= _rates(store, names[start : start + PAGE], _PLANNED, NEWEST_OF_MANY)
    return found


def _rates(
    store: Store, jobs: Sequence[str], source: str, newest: int
) -> dict[str, JobRates]:
    names = {name: job for job in jobs for name in store.names_of(job)}
    with reading(store) as at:
        now = at.now()
        given: dict[str, object] = {"names": list(names), "now": now}
        if len(jobs) == 1:
            given |= {f"name{number}": name for number, name in enumerate(names)}
        given |= {"others": newest - 1}
        given |= {"since": hour_of(now - WEEK), "day": hour_of(now - DAY)}
        runs = _by_job(names, _runs(at, source, given))
        counts = _by_job(names, at.read(_COUNTS, given))
    return {job: _of_one(job, runs[job][:newest], counts[job], now) for job in jobs}


def _runs(
    at: ReadTransaction, source: str, given: Mapping[str, object]
) -> Sequence[sa.RowMapping]:
    """Return slots of jobs and of their instances, the newest first."""
    text = _RUNS.replace("{names}", source)
    found = list[sa.RowMapping]()
    for of_s, of_o in _FAMILIES:
        found += at.read(text, given, of_s=of_s, of_o=of_o)
    return sorted(found, key=lambda row: utc(row["slot"]), reverse=True)


def _by_job(
    names: Mapping[str, str], rows: Sequence[sa.RowMapping]
) -> Mapping[str, Sequence[sa.RowMapping]]:
    """Return rows by their job; ``names`` has its former ones, too."""
    found = defaultdict[str, list[sa.RowMapping]](list)
    for row in rows:
        found[names[row["task_name"]]].append(row)
    return found


def _of_one(
    name: str,
    newest: Sequence[sa.RowMapping],
    counts: Sequence[sa.RowMapping],
    now: datetime,
) -> JobRates:
    signs = [_SIGNS.get(row["outcome"], "✗") for row in newest[:STRIP]]
    of_day = [row for row in counts if row["is_of_day"]]
    return JobRates(
        job=name,
        day=_rate(of_day, newest, now - DAY),
        week=_rate(counts, newest, now - WEEK),
        strip="".join(reversed(signs)),
    )


def _rate(
    counts: Sequence[sa.RowMapping], newest: Sequence[sa.RowMapping], since: datetime
) -> Rate:
    runs = failures = skipped = 0
    for row in counts:
        number = int(row["number"])
        if row["outcome"] == Outcome.SKIPPED:
            skipped += number
            continue
        runs += number
        if row["outcome"] in ENDED_BADLY:
            failures += number
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
