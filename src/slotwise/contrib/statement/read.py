"""Read what a statement needs, and make it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from slotwise.contrib.statement.reconcile import (
    Books,
    JobStatement,
    Pruned,
    Statement,
    added_up,
    pruned_in,
    reconcile,
)
from slotwise.inspect import RECURRING, Inspection, ScheduleSpan, SlotInfo

_TICK = timedelta(microseconds=1)
#: How often a job is read at most, while its slots are being pruned.
_READS = 5


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

    Each slot is explained by the ledger, or by the hourly counts of what was pruned from it. What
    workers have counted of the slots that are still there has no part in it. Counts are by the job:
    they explain slots of the job's own row, then those of its instances.
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
    """Return the statements of a job and of its instances.

    Race: a slot that is pruned between two reads would be in both the ledger and the counts, and
    explain another one, or in neither. So the ledger is read again until nothing was pruned
    meanwhile. At the last read, a slot may be in both.
    """
    pruned: Pruned = Counter()
    books = list[Books]()
    for _ in range(_READS):
        books = _books(inspect, name, spans, beyond, start, end)
        found = _reconciled(books, start, end, pruned)
        if not any(one.pruned or one.unexplained for one in found):
            return found
        now_pruned = pruned_in(inspect.outcome_counts(start, end, job=name))
        if now_pruned == pruned:
            return found
        pruned = now_pruned
    return _reconciled(books, start, end, pruned)


def _reconciled(
    books: Sequence[Books], start: datetime, end: datetime, pruned: Pruned
) -> list[JobStatement]:
    left = pruned.copy()
    found = [reconcile(one, start, end, left) for one in books]
    return sorted(found, key=lambda one: one.id)


def _own_row_first(item: tuple[str, object]) -> tuple[bool, str]:
    return item[0] != RECURRING, item[0]


def _books(
    inspect: Inspection,
    name: str,
    spans: Sequence[ScheduleSpan],
    beyond: Mapping[tuple[str, str], Sequence[SlotInfo]],
    start: datetime,
    end: datetime,
) -> list[Books]:
    """Return the books of a job, then those of its instances.

    Race: rows are read before the ledger. What was decided by then is in it; what is decided
    meanwhile counts as open, or as what the ledger has.
    """
    of_id = defaultdict[str, list[ScheduleSpan]](list)
    for span in spans:
        of_id[span.id].append(span)
    undecided = {id: _undecided(inspect, name, id) for id in of_id}
    known = defaultdict[str, list[SlotInfo]](list)
    for entry in inspect.slots(name, since=start, before=end, limit=None):
        known[entry.id].append(entry)
    return [
        Books(
            job=name,
            id=id,
            spans=mine,
            entries=[*known[id], *beyond.get((name, id), ())],
            undecided=undecided[id],
        )
        for id, mine in sorted(of_id.items(), key=_own_row_first)
    ]


def _undecided(inspect: Inspection, name: str, id: str) -> datetime | None:
    """Return the slot from which on nothing is decided yet; None without a row."""
    row = inspect.job(name, id=id)
    return None if row is None else row.next_slot


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
