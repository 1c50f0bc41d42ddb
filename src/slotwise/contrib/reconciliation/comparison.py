"""Expected slots against the ledger: which slots nothing explains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from slotwise.contrib.reconciliation.former import was_planned
from slotwise.inspect import Inspection, SlotWindow
from slotwise.spi import SlotState

#: Jobs of one read, and slots that are explained one by one.
_JOBS: Final = 200
_MOST: Final = 500
#: The most slots without an explanation that are listed.
_SHOWN: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Unexplained:
    """A slot of a schedule that neither the ledger, a gap nor a row has."""

    job: str
    id: str
    slot: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """What a comparison of the schedules with the ledger has found, from ``since`` to before
    ``at``, the database's time. ``count`` slots are unexplained; ``unexplained`` are the first.

    It is not ``complete`` if there were more slots than are read or explained.
    """

    since: datetime
    at: datetime
    jobs: int
    count: int
    unexplained: Sequence[Unexplained]
    complete: bool


def reconcile(inspect: Inspection, start: datetime, end: datetime) -> Reconciliation:
    """Explain each slot from ``start`` to before ``end`` that did not run and is in no gap. Raises
    DatabaseProblem.
    """
    found = list[Unexplained]()
    jobs = asked = 0
    is_complete = True
    for window in _all_windows(inspect, start, end):
        jobs += 1
        is_complete &= window.complete
        unknown = list[datetime]()
        for slot in window.missing:
            asked += 1
            if asked > _MOST:
                break
            why = inspect.explain(window.job, slot, id=window.id)
            if why.outcome == SlotState.UNKNOWN:
                unknown.append(slot)
        if unknown:  # a deploy may have changed the schedule since
            spans = inspect.schedule_spans(start, end, job=window.job)
            found += (
                Unexplained(job=window.job, id=window.id, slot=slot)
                for slot in unknown
                if was_planned(slot, window.id, spans)
            )
    return Reconciliation(
        since=start,
        at=end,
        jobs=jobs,
        count=len(found),
        unexplained=found[:_SHOWN],
        complete=is_complete and asked <= _MOST,
    )


def _all_windows(
    inspect: Inspection, start: datetime, end: datetime
) -> Iterator[SlotWindow]:
    after = ("", "")
    while page := inspect.windows(start, end, after=after, limit=_JOBS):
        yield from page
        after = (page[-1].job, page[-1].id)
