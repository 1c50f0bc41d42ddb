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

    What the ledger has no more is taken from the hourly counts, which are by the job: its slots
    stand with the job's own row, those of its instances too.
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
    ids = sorted({span.id for span in spans})
    found = []
    for id in ids:
        of_id = [span for span in spans if span.id == id]
        known = [entry for entry in entries if entry.id == id]
        known += beyond.get((name, id), ())
        books = _books(inspect, of_id, known)
        found.append(reconcile(books, start, end))
    if not any(one.unexplained for one in found):
        return found
    counts = inspect.outcome_counts(start, end, job=name)
    return [
        with_pruned(one, entries, counts) if one.id in (RECURRING, ids[0]) else one
        for one in found
    ]


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
