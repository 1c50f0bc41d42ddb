"""What should have run in a window of time, what did, and how that ended, of all jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice

import sqlalchemy as sa

from slotwise.model.records import TICK, from_micros
from slotwise.model.values import Value
from slotwise.schedules.text import readable
from slotwise.store.reading.queries import NO_LIMIT, read, reading
from slotwise.store.reading.slots import LOSS, SlotInfo
from slotwise.store.schema.rows import filled
from slotwise.store.slots.counts import SLOT, hour_of
from slotwise.store.slots.store import Store

#: Slots of one job that are computed, and lines of all jobs that are read.
MOST_SLOTS = 1_000
MOST_LINES = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotWindow(Value):
    """The slots of a job, or of an instance, in a window.

    ``expected``: the slots of the schedule that is in force, since the job was planned first; none
    of a FixedDelay, or of a schedule that this release cannot read. ``actual``: what the ledger
    and its gaps have, the oldest first. A window with more slots than are read is not
    ``complete``.
    """

    job: str
    id: str
    schedule: str
    expected: Sequence[datetime] = ()
    actual: Sequence[SlotInfo] = ()
    complete: bool = True

    @property
    def missing(self) -> list[datetime]:
        """The expected slots that neither the ledger nor a gap has: yet to come, undecided or
        lost.
        """
        started = {line.slot for line in self.actual if line.last is None}
        gaps = [
            (line.slot, line.last) for line in self.actual if line.last is not None
        ]
        return [
            slot
            for slot in self.expected
            if slot not in started
            and not any(first <= slot <= last for first, last in gaps)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeCount(Value):
    """Slots of a job, with those of its instances, that lie in one hour and have this outcome and
    reason; or tasks of a name, by the hour of their last start.

    ``pruned``: how many the ledger has no more. This is exact at any time; ``count`` has them, and
    what workers have counted.
    """

    job: str
    hour: datetime
    outcome: str
    reason: str | None
    count: int
    pruned: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeTotal(Value):
    """Slots of all jobs that have this outcome and reason: of how many ``jobs``, and the name of
    one.
    """

    outcome: str
    reason: str | None
    count: int
    jobs: int
    example: str


#: Plan rows after a name and id, up to others. Conditions on the names alone let an index be
#: searched.
_PLANNED = """t.kind = 'plan'
AND t.task_name >= :name AND (t.task_name > :name OR t.task_instance > :id)"""
_UP_TO = """
AND t.task_name <= :last_name AND (t.task_name < :last_name OR t.task_instance <= :last_id)"""
_PLANS = f"""
SELECT t.task_name, t.task_instance, t.schedule, t.created_version
FROM {{tasks}} AS t WHERE {_PLANNED} ORDER BY t.task_name, t.task_instance LIMIT :limit"""
#: Ledger and gaps in one statement: of each plan row a range of their primary keys.
_ACTUAL = f"""
SELECT s.task_name, s.task_instance, s.slot, NULL AS last, 1 AS count, s.outcome, s.reason,
       s.attempts, s.started, s.finished,
       CASE WHEN s.lost > 0 THEN (SELECT a.worker {LOSS}) END AS lost_by
FROM {{tasks}} AS t
JOIN {{slots}} AS s ON s.task_name = t.task_name AND s.task_instance = t.task_instance
WHERE {_PLANNED}{_UP_TO} AND s.slot >= :start AND s.slot < :end
UNION ALL
SELECT g.task_name, g.task_instance, g.first_slot, g.last_slot, g.count, 'skipped', g.reason,
       0, NULL, g.created, NULL
FROM {{tasks}} AS t
JOIN {{gaps}} AS g ON g.task_name = t.task_name AND g.task_instance = t.task_instance
WHERE {_PLANNED}{_UP_TO} AND g.first_slot < :end AND g.last_slot >= :start
ORDER BY 1, 2, 3 LIMIT :most"""


def windows(
    store: Store,
    start: datetime,
    end: datetime,
    *,
    after: tuple[str, str] = ("", ""),
    limit: int | None = None,
) -> list[SlotWindow]:
    """Return expected and actual slots from ``start`` to before ``end``, of the jobs and instances
    after ``after``, by name and id.
    """
    name, id = after
    given: dict[str, object] = {
        "name": name,
        "id": id,
        "start": start,
        "end": end,
        "limit": limit or NO_LIMIT,
    }
    plans, lines = _read(store, given)
    actual = _by_instance(lines[:MOST_LINES])
    found = [_window(row, start, end, actual[_key(row)]) for row in plans]
    if len(lines) <= MOST_LINES:
        return found
    cut_at = _key(lines[MOST_LINES])
    return [
        one if (one.job, one.id) < cut_at else replace(one, complete=False)
        for one in found
    ]


def _by_instance(
    lines: Sequence[sa.RowMapping],
) -> Mapping[tuple[str, str], Sequence[SlotInfo]]:
    found = defaultdict[tuple[str, str], list[SlotInfo]](list)
    for row in lines:
        found[_key(row)].append(filled(SlotInfo, row))
    return found


def _read(
    store: Store, given: dict[str, object]
) -> tuple[Sequence[sa.RowMapping], Sequence[sa.RowMapping]]:
    """Return the plan rows, and what ledger and gaps have of these."""
    with reading(store) as at:
        plans = at.read(_PLANS, given)
        if not plans:
            return [], []
        given["last_name"], given["last_id"] = _key(plans[-1])
        given["most"] = MOST_LINES + 1
        return plans, at.read(_ACTUAL, given)


def _window(
    row: sa.RowMapping, start: datetime, end: datetime, actual: Sequence[SlotInfo]
) -> SlotWindow:
    job, id = _key(row)
    expected = tuple(islice(_expected(row, start, end), MOST_SLOTS + 1))
    return SlotWindow(
        job=job,
        id=id,
        schedule=row["schedule"] or "–",
        expected=expected[:MOST_SLOTS],
        actual=tuple(actual),
        complete=len(expected) <= MOST_SLOTS,
    )


def _key(row: sa.RowMapping) -> tuple[str, str]:
    return row["task_name"], row["task_instance"]


def _expected(
    row: sa.RowMapping, start: datetime, end: datetime
) -> Iterator[datetime]:
    schedule = readable(row["schedule"])
    if schedule is None or schedule.from_end:
        return iter(())
    since = start - TICK
    if row["created_version"]:
        since = max(since, from_micros(row["created_version"]))
    return schedule.slots(since, end - TICK)


_COUNTS = """
SELECT task_name AS job, hour, outcome, reason, count + pruned AS count, pruned
FROM {counts} WHERE hour >= :start AND hour < :end AND kind = :kind{of_job}
    AND (count + pruned > 0 OR pruned > 0)
ORDER BY task_name, hour, outcome, reason"""


def outcome_counts(
    store: Store,
    start: datetime,
    end: datetime,
    *,
    job: str | None = None,
    kind: str = SLOT,
) -> list[OutcomeCount]:
    """Return how many slots of each job, or tasks of each name, had which outcome, by the hour."""
    given = {"start": hour_of(start), "end": end, "job": job, "kind": kind}
    of_job = "" if job is None else " AND task_name = :job"
    return [
        filled(OutcomeCount, row, reason=row["reason"] or None)
        for row in read(store, _COUNTS, given, of_job=of_job)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomePart(Value):
    """Slots of a job, with those of its instances, whose hours begin in one of the equal ``part``s
    of a window, counted from 0.
    """

    job: str
    part: int
    outcome: str
    count: int


_PARTS = """
SELECT task_name AS job, {part} AS part, outcome, {f}sum(count + pruned) AS count
FROM {counts} WHERE task_name IN :names AND hour >= :start AND hour < :end AND kind = 'slot'
    AND count + pruned > 0
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"""
#: SQLite keeps instants as microseconds.
_PART_OF = {
    "postgresql": """CAST(pg_catalog.floor(
        EXTRACT(epoch FROM hour - :start) * :parts / :length) AS integer)""",
    "sqlite": "(hour - :start) * :parts / (:length * 1000000)",
    "mysql": "timestampdiff(SECOND, :start, hour) * :parts DIV :length",
}


def outcome_parts(
    store: Store, jobs: Sequence[str], start: datetime, end: datetime, parts: int
) -> list[OutcomePart]:
    """Return the counts of these jobs for each part of a window that has any."""
    if not jobs:
        return []
    given = {
        "names": list(jobs),
        "start": start,
        "end": end,
        "parts": parts,
        "length": int((end - start).total_seconds()),
    }
    part = _PART_OF[store.database.dialect_name]
    rows = read(store, _PARTS, given, part=part)
    return [OutcomePart(**{**row, "count": int(row["count"])}) for row in rows]


_TOTALS = """
SELECT outcome, reason, {f}sum(count + pruned) AS count, {f}count(DISTINCT task_name) AS jobs,
       {f}min(task_name) AS example
FROM {counts} WHERE hour >= :start AND hour < :end AND kind = 'slot' AND count + pruned > 0
GROUP BY outcome, reason ORDER BY 3 DESC, 1, 2"""


def outcome_totals(store: Store, start: datetime, end: datetime) -> list[OutcomeTotal]:
    """Return how many slots of all jobs had which outcome and reason, the most frequent first."""
    return [
        filled(
            OutcomeTotal, row, reason=row["reason"] or None, count=int(row["count"])
        )
        for row in read(store, _TOTALS, {"start": hour_of(start), "end": end})
    ]
