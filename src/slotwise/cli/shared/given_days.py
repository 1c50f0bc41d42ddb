"""Days of a calendar as arguments: single ones, ranges, and worked days of a weekend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, timedelta

import click

_DAY = timedelta(days=1)
#: Longer ranges are typing mistakes.
_LONGEST_RANGE = 366


def given_days(texts: Sequence[str]) -> tuple[frozenset[date], frozenset[date]]:
    """Parse days and ranges of days, and those with a + before them. Raises UsageError."""
    free: set[date] = set()
    worked: set[date] = set()
    for text in texts:
        (worked if text.startswith("+") else free).update(
            _range(text.removeprefix("+"))
        )
    if both := free & worked:
        raise click.UsageError(f"{min(both)} is given with and without a +")
    return frozenset(free), frozenset(worked)


def _range(text: str) -> Iterator[date]:
    first, _, last = text.partition("..")
    try:
        low = date.fromisoformat(first)
        high = date.fromisoformat(last or first)
    except ValueError:
        raise click.UsageError(
            f"{text}: write a day, 2026-12-24, or a range, 2026-12-28..2026-12-31"
        ) from None
    if not 0 <= (high - low).days <= _LONGEST_RANGE:
        raise click.UsageError(
            f"{text}: a range ends after its start, and is at most {_LONGEST_RANGE} days long"
        )
    for number in range((high - low).days + 1):
        yield low + number * _DAY
