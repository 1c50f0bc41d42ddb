"""Read what a statement needs, and make it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
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
    spans = defaultdict[str, list[ScheduleSpan]](list)
    for span in inspect.schedule_spans(start, end, job=job):
        spans[span.job].append(span)
    beyond = _gaps_over(inspect, end)
    found: list[JobStatement] = []
    for name, of_job in sorted(spans.items()):
        found += _of_job(inspect, name, of_job, beyond, start, end)
    return Statement(start=start, end=end, jobs=tuple(found), total=added_up(found))


def _of_job(
    inspect: Inspection,
    name: str,
    spans: Sequence[ScheduleSpan],
    beyond: Mapping[tuple[str, str], Sequence[SlotInfo]],
    start: datetime,
    end: datetime,
) -> list[JobStatement]:
    entries = inspect.slots(name, since=start, before=end, limit=None)
    by_id = defaultdict[str, list[SlotInfo]](list)
    for entry in entries:
        by_id[entry.id].append(entry)
    ids = sorted({span.id for span in spans})
    found = []
    for id in ids:
        row = inspect.job(name, id=id)
        books = Books(
            job=name,
            id=id,
            spans=[span for span in spans if span.id == id],
            entries=[*by_id[id], *beyond.get((name, id), ())],
            undecided=None if row is None else row.next_slot,
        )
        found.append(reconcile(books, start, end))
    if not any(one.unexplained for one in found):
        return found
    counts = inspect.outcome_counts(start, end, job=name)
    return [
        with_pruned(one, entries, counts) if one.id in (RECURRING, ids[0]) else one
        for one in found
    ]


def _gaps_over(
    inspect: Inspection, end: datetime
) -> Mapping[tuple[str, str], Sequence[SlotInfo]]:
    """Return the gaps that begin before ``end`` and end after it."""
    found = {}
    for window in inspect.windows(end - _TICK, end):
        over = [one for one in window.actual if one.last is not None and one.last >= end]
        if over:
            found[window.job, window.id] = over
    return found
