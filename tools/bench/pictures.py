"""Pictures of a run: the rates of a cell as bars, its single values as curves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tools.bench.cells import ALL
from tools.bench.readings import Readings, Summary
from tools.bench.report import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Inches of a picture, and of each bar.
_WIDTH = 8.0
_HEIGHT = 4.0
_BAR = 0.3
_OURS, _OTHERS, _INK = "#3b6fb6", "#9aa5b1", "#5b6670"
FORMATS = ("svg", "png")


def draw(readings: Readings, folder: Path) -> list[Path]:
    """Draw an SVG and a PNG for each cell that has rates, and for each that has single values.
    Return their paths. Raises ImportError without matplotlib.
    """
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, title, summaries in _pictures(readings):
        is_rate = name.endswith("-rate")
        height = 1.2 + _BAR * len(summaries) if is_rate else _HEIGHT
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        axes = figure.subplots()
        axes.set_title(title, loc="left")
        if is_rate:
            _bars(axes, summaries)
        else:
            _curves(axes, summaries)
        for suffix in FORMATS:
            path = folder / f"{name}.{suffix}"
            figure.savefig(path, dpi=150)
            written.append(path)
    return written


def _pictures(readings: Readings) -> Iterator[tuple[str, str, list[Summary]]]:
    for cell in dict.fromkeys(one.cell for one in readings.all):
        summaries = readings.contenders(cell)
        if rates := [one for one in summaries if one.values("rate")]:
            yield f"{cell}-rate", ALL[cell].title, rates
        if spreads := [one for one in summaries if len(one.spread) > 1]:
            yield f"{cell}-spread", ALL[cell].title, spreads


def _bars(axes: Axes, summaries: Sequence[Summary]) -> None:
    """The median as a bar; a line from minimum to maximum across its end."""
    names = [one.contender for one in summaries]
    medians = [one.median("rate") or 0.0 for one in summaries]
    below = [
        middle - (one.least("rate") or 0.0)
        for one, middle in zip(summaries, medians, strict=True)
    ]
    above = [
        (one.most("rate") or 0.0) - middle
        for one, middle in zip(summaries, medians, strict=True)
    ]
    colours = [_OURS if name.startswith("slotwise") else _OTHERS for name in names]
    bars = axes.barh(names, medians, xerr=[below, above], color=colours, ecolor=_INK)
    axes.bar_label(
        bars, labels=[f"{number(middle)}/s" for middle in medians], padding=6
    )
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel("per second; median, and a line from least to most")


def _curves(axes: Axes, summaries: Sequence[Summary]) -> None:
    """The share of values up to each duration, on a logarithmic axis."""
    for one in summaries:
        values = one.spread
        shares = [place / (len(values) - 1) for place in range(len(values))]
        axes.plot([max(value, 1e-3) for value in values], shares, label=one.contender)
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds")
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.grid(visible=True, alpha=0.4)
    axes.legend()
