"""Pictures of a run: rates as bars, distributions as curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from slotwise.bench.cells import ALL
from slotwise.bench.readings import Readings, Summary
from slotwise.bench.report import number
from slotwise.errors import ConfigurationError
from slotwise.picture import Box, Label, Line, Picture, Shape

_WIDTH, _LEFT, _RIGHT, _BAR, _TOP = 760, 190, 130, 26, 48
_COLOURS = ("#3b6fb6", "#c8553d", "#588157", "#8d6a9f", "#b08900", "#4a4e69", "#2a9d8f")
_OTHERS, _AXIS, _SMALL = "#9aa5b1", "#b8bfc6", "#5b6670"
_CURVE_LEFT, _CURVE_RIGHT, _CURVE_BOTTOM = 60, _WIDTH - 220, 330


def draw(readings: Readings, folder: Path, tell: Callable[[str], None] = lambda _: None) -> list[Path]:
    """An SVG and a PNG for each cell that has rates, and for each that has single values; their paths.

    Where Pillow is missing ``tell`` is told so once, and SVG is all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written, suffixes = [], [".svg", ".png"]
    for name, picture in _pictures(readings):
        for suffix in tuple(suffixes):
            path = folder / f"{name}{suffix}"
            try:
                picture.write(path)
            except ConfigurationError as error:
                suffixes.remove(suffix)
                tell(str(error))
            else:
                written.append(path)
    return written


def _pictures(readings: Readings) -> Iterator[tuple[str, Picture]]:
    for cell in dict.fromkeys(one.cell for one in readings.all):
        summaries, title = readings.contenders(cell), Label(12, 20, ALL[cell].title, 15)
        if rates := [one for one in summaries if one.values("rate")]:
            height = _TOP + _BAR * len(rates) + 40
            yield f"{cell}-rate", Picture(_WIDTH, height, (title, *_bars(rates)))
        if spreads := [one for one in summaries if len(one.spread) > 1]:
            yield f"{cell}-spread", Picture(_WIDTH, _CURVE_BOTTOM + 50, (title, *_curves(spreads)))


def _bars(summaries: Sequence[Summary]) -> Iterator[Shape]:
    """The median as a bar, least and most as a line across its end."""
    top = max(one.most("rate") or 1.0 for one in summaries)
    scale = (_WIDTH - _LEFT - _RIGHT) / top
    for place, one in enumerate(summaries):
        y, middle = _TOP + place * _BAR + 11, one.median("rate") or 0.0
        colour = _COLOURS[0] if one.contender.startswith("slotwise") else _OTHERS
        low, high = (_LEFT + (value or 0.0) * scale for value in (one.least("rate"), one.most("rate")))
        yield Label(_LEFT - 8, y, one.contender, 13, end=True)
        yield Box(_LEFT, y - 9, round(middle * scale, 1), _BAR - 8, colour)
        yield Line([(low, y), (high, y)], _SMALL)
        yield Label(round(high + 8, 1), y, f"{number(middle)}/s", 13)
    yield Label(_LEFT, _TOP + len(summaries) * _BAR + 14, "median; line: least to most", 11, colour=_SMALL)


def _curves(summaries: Sequence[Summary]) -> Iterator[Shape]:
    """Which share took at most so long; the axis of time is logarithmic."""
    least = max(min(one.spread[0] for one in summaries), 1e-3)
    low = math.floor(math.log10(least))
    high = max(math.ceil(math.log10(max(one.spread[-1] for one in summaries))), low + 1)

    def across(value: float) -> float:
        share = (math.log10(value) - low) / (high - low)
        return round(_CURVE_LEFT + share * (_CURVE_RIGHT - _CURVE_LEFT), 1)

    for exponent in range(low, high + 1):
        x = across(10.0**exponent)
        yield Line([(x, _up(0)), (x, _up(1))], _AXIS)
        yield Label(x - 12, _CURVE_BOTTOM + 16, f"{10.0**exponent:g} ms", 11, colour=_SMALL)
    for share in (0.0, 0.5, 1.0):
        yield Line([(_CURVE_LEFT, _up(share)), (_CURVE_RIGHT, _up(share))], _AXIS)
        yield Label(_CURVE_LEFT - 8, _up(share), f"{share:.0%}", 11, end=True, colour=_SMALL)
    for place, one in enumerate(summaries):
        colour, values = _COLOURS[place % len(_COLOURS)], one.spread
        steps = (
            (step / 200, max(values[min(step * len(values) // 200, len(values) - 1)], least)) for step in range(201)
        )
        yield Line([(across(value), _up(share)) for share, value in steps], colour, 2)
        yield Label(_CURVE_RIGHT + 16, _TOP + 10 + 20 * place, one.contender, 13, colour=colour)


def _up(share: float) -> float:
    return round(_CURVE_BOTTOM - share * (_CURVE_BOTTOM - _TOP), 1)
