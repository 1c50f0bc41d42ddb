"""Every slot of a schedule is in exactly one place: as a row of the ledger, or in one gap.

The demo's verdict, the simulation's laws and the model's comparison ask these functions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise


@dataclass(frozen=True, slots=True, order=True)
class Gap:
    """``count`` slots that did not run, first and last included."""

    first: datetime
    last: datetime
    count: int


def missing(
    due: Iterable[datetime], known: Collection[datetime], gaps: Sequence[Gap]
) -> Iterator[tuple[datetime, str]]:
    """Yield the slots that are neither among the known ones nor in a gap."""
    for slot in due:
        if slot not in known and not any(
            gap.first <= slot <= gap.last for gap in gaps
        ):
            yield slot, "neither in the ledger nor in a gap"


def phantoms(
    due: Iterable[datetime], rows: Iterable[datetime]
) -> Iterator[tuple[datetime, str]]:
    """Yield the ledger's rows whose slots were never due."""
    for slot in sorted(set(rows).difference(due)):
        yield slot, "in the ledger, but never due"


def in_two_places(
    rows: Sequence[datetime], gaps: Sequence[Gap]
) -> Iterator[tuple[datetime, str]]:
    """Yield where gaps overlap each other, and the rows within a gap; both are in order."""
    for before, gap in pairwise(gaps):
        if gap.first <= before.last:
            yield gap.first, f"two gaps overlap at {gap.first}"
    for gap in gaps:
        for slot in rows[bisect_left(rows, gap.first) : bisect_right(rows, gap.last)]:
            yield slot, f"in the ledger and in the gap from {gap.first}"


def miscounted(
    gaps: Sequence[Gap], count: Callable[[Gap], int]
) -> Iterator[tuple[datetime, str]]:
    """Yield the gaps that cover more or fewer slots than they say."""
    for gap in gaps:
        covered = count(gap)
        if covered != gap.count:
            yield gap.first, f"a gap of {gap.count} covers {covered} to {gap.last}"
