"""Words that what people read about schedules shares."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import time


def listed(parts: Sequence[str]) -> str:
    """a, b and c."""
    *earlier, last = parts or [""]
    return f"{', '.join(earlier)} and {last}" if earlier else last


def ranges(values: Sequence[int], names: Sequence[str] = ()) -> str:
    """The values, or their names; three or more that follow each other as a range."""
    runs: list[list[int]] = []
    for value in values:
        if runs and runs[-1][-1] == value - 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    parts: list[str] = []
    for run in runs:
        told = [names[value] if names else str(value) for value in run]
        parts += [f"{told[0]} to {told[-1]}"] if len(told) > 2 else told
    return listed(parts)


def time_text(value: time) -> str:
    """`02:00`, or `02:00:30`."""
    return value.isoformat("seconds").removesuffix(":00")
