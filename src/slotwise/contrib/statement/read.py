"""Read what a statement needs, and make it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from slotwise.contrib.statement.reconcile import (
    Books,
    JobStatement,
    Statement,
    added_up,
    pruned,
    reconcile,
    with_pruned,
)
from slotwise.inspect import RECURRING, Inspection, ScheduleSpan, SlotInfo

_TICK = timedelta(microseconds=1)


def statement(
    inspect: Inspection,
    start: datetime,
    end: datetime,
    *,
    now: datetime,
    job: str | None = None,
) -> Statement:
    """Return what was expected from ``start`` to before ``end``, or before ``now``, and what became
    of it, of one job or of all.

    What the ledger has no more is taken from the hourly counts, which are by the job: they explain
    slots of the job's own row, then those of its instances, as many in all as they have.
    """
    end = min(end, now)
    spans = _by_job(inspect.schedule_spans(start, end, job=job))
    beyond = _gaps_over(inspect, end)
    found: list[JobStatement] = []
    for name, of_job in sorted(spans.items()):
        found += _of_job(inspect, name, of_job, beyond, start, end)
    return Statement(start=start, end=end, jobs=tuple(found), total=added_up(found))


def _by_job(spans: Iterable[ScheduleSpan]) -> Mapping[str, Sequence[ScheduleSpan]]:
    found = defaultdict[str, list[ScheduleSpan]](list)
    for span in spans:
        found[span.job].append(span)
    return found


def _of_job(
    inspect: Inspection,
    name: str,
    spans: Sequence[ScheduleSpan],
    beyond: Mapping[tuple[str, str], Sequence[SlotInfo]],
    start: datetime,
    end: datetime,
) -> list[JobStatement]:
    entries = inspect.slots(name, since=start, before=end, limit=None)
    known = defaultdict[str, list[SlotInfo]](list)
    for entry in entries:
        known[entry.id].append(entry)
    of_id = defaultdict[str, list[ScheduleSpan]](list)
    for span in spans:
        of_id[span.id].append(span)
    found = []
    for id, mine in sorted(of_id.items(), key=_own_row_first):
        books = _books(inspect, mine, [*known[id], *beyond.get((name, id), ())])
        found.append(reconcile(books, start, end))
    if any(one.unexplained for one in found):
        counted = pruned(entries, inspect.outcome_counts(start, end, job=name))
        found = [with_pruned(one, counted) for one in found]
    return sorted(found, key=lambda one: one.id)


def _own_row_first(item: tuple[str, object]) -> tuple[bool, str]:
    return item[0] != RECURRING, item[0]


def _books(
    inspect: Inspection, spans: Sequence[ScheduleSpan], entries: Sequence[SlotInfo]
) -> Books:
    """Return the books of a job, or an instance, with these schedules."""
    job = spans[0].job
    id = spans[0].id
    row = inspect.job(job, id=id)
    return Books(
        job=job,
        id=id,
        spans=spans,
        entries=entries,
        undecided=None if row is None else row.next_slot,
    )


def _gaps_over(
    inspect: Inspection, end: datetime
) -> Mapping[tuple[str, str], Sequence[SlotInfo]]:
    """Return the gaps that begin before ``end`` and end after it."""
    found = {}
    for window in inspect.windows(end - _TICK, end):
        over = [
            one for one in window.actual if one.last is not None and one.last >= end
        ]
        if over:
            found[window.job, window.id] = over
    return found
