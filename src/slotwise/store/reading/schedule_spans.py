"""The schedules that jobs and instances had in a time, from the rows and the history of deploys."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from slotwise.model.records import TICK, from_micros
from slotwise.model.values import Value
from slotwise.store.reading.queries import ReadTransaction, reading
from slotwise.store.schema.rows import utc
from slotwise.store.slots.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSpan(Value):
    """A job, or an instance, had this schedule: slots after ``since``, up to and including
    ``until``, are slots of it. It is "?" if a restore of the queue has changed it meanwhile.
    ``is_first``: the job was planned then, and had none before.
    """

    job: str
    id: str
    since: datetime
    until: datetime
    schedule: str
    is_first: bool = False


_PLANS = """
SELECT task_name, task_instance, schedule, created_version FROM {tasks}
WHERE kind = 'plan'{of_job}"""
_DEPLOYS = """
SELECT task_name, task_instance, at, former, schedule FROM {deploys}
WHERE at < :end{of_job} ORDER BY at"""
_DELETIONS = """
SELECT task_name, at FROM {controls}
WHERE command = 'delete' AND task_name IS NOT NULL{of_job} ORDER BY at"""
Key = tuple[str, str]
#: The schedule of a span in which a restore of the queue alone has brought an older one back.
UNKNOWN = "?"
#: Before any deploy, and after all.
FIRST, LAST = from_micros(0), from_micros(220_000_000_000_000_000)


def schedule_spans(
    store: Store, start: datetime, end: datetime, *, job: str | None = None
) -> list[ScheduleSpan]:
    """Return which schedules were in force from ``start`` to before ``end``, by job, id and
    time. Those of jobs that were deleted since are among them, as far as the history goes back.
    """
    of_job = "" if job is None else " AND task_name = :job"
    now = store.now()
    given: dict[str, object] = {"job": job, "end": max(end, now)}
    with reading(store) as at:
        plans = _plans(at, given, of_job)
        deploys = _by_key(at, given, of_job)
        deletions = _deletions(at, given, of_job)
    found = []
    for key in sorted(plans.keys() | deploys.keys()):
        changes = deploys.get(key, ())
        for span in _spans(key, plans.get(key), changes, deletions.get(key[0], ())):
            if span.until >= start and span.since < end - TICK:
                found.append(span)
    return found


def _spans(
    key: Key,
    plan: sa.RowMapping | None,
    changes: Sequence[sa.RowMapping],
    deletions: Sequence[datetime],
) -> Iterator[ScheduleSpan]:
    """Yield all spans of a job; the first may begin, and the last end, at the ends of time."""
    if not changes and plan is not None and plan["schedule"]:
        since = _created(plan)
        yield _span(key, since, LAST, plan["schedule"], is_first=since > FIRST)
    changes = _in_order(changes, deletions)
    for place, change in enumerate(changes):
        at = utc(change["at"])
        is_first = change["former"] is None
        if place == 0 and not is_first:
            yield _span(key, FIRST, at, change["former"])
        until, schedule = LAST, change["schedule"]
        if place + 1 < len(changes):
            until = max(at, utc(changes[place + 1]["at"]))
            former = changes[place + 1]["former"]
            schedule = schedule if former in (None, schedule) else UNKNOWN
        until = min((one for one in deletions if at < one <= until), default=until)
        yield _span(key, at, until, schedule, is_first=is_first)


def _in_order(
    changes: Sequence[sa.RowMapping], deletions: Sequence[datetime]
) -> Sequence[sa.RowMapping]:
    """Return the changes with the first planning as the first. It is a later one by its time if the
    clock was set back after it; if there is a deletion before it, it is another planning.
    """
    planned = next((one for one in changes if one["former"] is None), None)
    if planned is None or any(at <= utc(planned["at"]) for at in deletions):
        return changes
    return [planned, *(one for one in changes if one is not planned)]


def _span(
    key: Key,
    since: datetime,
    until: datetime,
    schedule: str,
    *,
    is_first: bool = False,
) -> ScheduleSpan:
    return ScheduleSpan(
        job=key[0],
        id=key[1],
        since=since,
        until=until,
        schedule=schedule,
        is_first=is_first,
    )


def _created(plan: sa.RowMapping) -> datetime:
    return from_micros(plan["created_version"]) if plan["created_version"] else FIRST


def _plans(
    at: ReadTransaction, given: Mapping[str, object], of_job: str
) -> dict[Key, sa.RowMapping]:
    rows = at.read(_PLANS, given, of_job=of_job)
    return {_key(row): row for row in rows}


def _deletions(
    at: ReadTransaction, given: Mapping[str, object], of_job: str
) -> Mapping[str, Sequence[datetime]]:
    """Return when jobs were deleted, by name."""
    found = defaultdict[str, list[datetime]](list)
    for row in at.read(_DELETIONS, given, of_job=of_job):
        found[row["task_name"]].append(utc(row["at"]))
    return dict(found)


def _by_key(
    at: ReadTransaction, given: Mapping[str, object], of_job: str
) -> dict[Key, list[sa.RowMapping]]:
    found = defaultdict[Key, list[sa.RowMapping]](list)
    for row in at.read(_DEPLOYS, given, of_job=of_job):
        found[_key(row)].append(row)
    return dict(found)


def _key(row: sa.RowMapping) -> Key:
    return row["task_name"], row["task_instance"]
