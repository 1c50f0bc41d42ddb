"""A heat map as a picture: days down, hours across."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log
from pathlib import Path
from typing import Final

from slotwise.model.picture import Box, Label, Picture

_CELL: Final = (28, 18)
_LEFT, _TOP, _RIGHT, _BOTTOM = 64, 56, 24, 52
_EMPTY: Final = "#eef1f4"
#: From few to many, readable without colours too: each is darker than the one before.
_HEAT: Final = ("#d3e5f2", "#a6cde4", "#6cb0d6", "#3a8fc4", "#1a6cab", "#0b4a85", "#082f5c")


def draw(file: Path, title: str, rows: Sequence[str], counts: Sequence[Sequence[int]]) -> None:
    """Write the heat map of these rows of 24 hours. Raises ConfigurationError if Pillow is needed and missing."""
    lay_out(title, rows, counts).write(file)


def lay_out(title: str, rows: Sequence[str], counts: Sequence[Sequence[int]]) -> Picture:
    """Where everything stands: title, hours, rows, a legend."""
    width, height = _CELL
    most = max((count for row in counts for count in row), default=0)
    bottom = _TOP + height * len(rows)
    shapes: list[Box | Label] = [Label(_LEFT, 18, title, 14)]
    shapes += [Label(_LEFT + width * hour + 4, _TOP - 10, f"{hour:02}", 11) for hour in range(24)]
    for number, (name, row) in enumerate(zip(rows, counts, strict=True)):
        top = _TOP + height * number
        shapes.append(Label(_LEFT - 8, top + height // 2, name, 11, end=True))
        for hour, count in enumerate(row):
            told = f"{name}, {hour:02}:00: {count}"
            shapes.append(Box(_LEFT + width * hour, top, width - 2, height - 2, _colour(count, most), told))
    shapes += _legend(_LEFT, bottom + 22, most)
    return Picture(_LEFT + width * 24 + _RIGHT, bottom + _BOTTOM, tuple(shapes))


def _legend(x: int, y: int, most: int) -> Iterator[Box | Label]:
    yield Label(x, y, "starts per hour: 0", 11)
    yield Box(x + 110, y - 6, 22, 12, _EMPTY)
    for number, colour in enumerate(_HEAT):
        yield Box(x + 136 + 24 * number, y - 6, 22, 12, colour)
    yield Label(x + 144 + 24 * len(_HEAT), y, f"up to {most}", 11)


def _colour(count: int, most: int) -> str:
    """By the logarithm: one start among thousands is still seen."""
    if not count:
        return _EMPTY
    return _HEAT[min(len(_HEAT) - 1, int(len(_HEAT) * log(count) / log(most + 1)))]
