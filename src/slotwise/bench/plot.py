"""Pictures of a run, as SVG written by hand: rates as bars, distributions as curves. They need nothing to be seen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from slotwise.bench.cells import ALL
from slotwise.bench.readings import Readings, Summary
from slotwise.bench.report import number

_WIDTH, _LEFT, _RIGHT, _BAR, _TOP = 760, 190, 130, 26, 48
_COLOURS = ("#3b6fb6", "#c8553d", "#588157", "#8d6a9f", "#b08900", "#4a4e69", "#2a9d8f")
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#333}.title{font-weight:600;font-size:15px}"
    ".axis{stroke:#999;stroke-width:1}.small{font-size:11px;fill:#666}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.small{fill:#aaa}}"
)


def draw(readings: Readings, folder: Path) -> list[Path]:
    """A file for each cell that has rates, and one for each that has single values; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for cell in dict.fromkeys(one.cell for one in readings.all):
        summaries = readings.contenders(cell)
        rates = [one for one in summaries if one.values("rate")]
        spreads = [one for one in summaries if len(one.spread) > 1]
        for kind, found, picture in (("rate", rates, _bars), ("spread", spreads, _curves)):
            if found:
                path = folder / f"{cell}-{kind}.svg"
                path.write_text(_document(cell, found, picture(found)))
                written.append(path)
    return written


def _document(cell: str, summaries: Sequence[Summary], body: Iterator[str]) -> str:
    height = _TOP + max(_BAR * len(summaries), 0) + 40
    if any(one.spread for one in summaries) and not any(one.values("rate") for one in summaries):
        height = _PLOT_BOTTOM + 50
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">'
    title = f'<text class="title" x="12" y="24">{escape(ALL[cell].title)}</text>'
    return "\n".join([head, f"<style>{_STYLE}</style>", title, *body, "</svg>\n"])


def _bars(summaries: Sequence[Summary]) -> Iterator[str]:
    """The median as a bar, least and most as a line across its end."""
    top = max(one.most("rate") or 1.0 for one in summaries)
    scale = (_WIDTH - _LEFT - _RIGHT) / top
    for place, one in enumerate(summaries):
        y, middle = _TOP + place * _BAR, one.median("rate") or 0.0
        colour = _COLOURS[0] if one.contender.startswith("slotwise") else "#9aa5b1"
        low, high = (_LEFT + (value or 0.0) * scale for value in (one.least("rate"), one.most("rate")))
        yield f'<text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(one.contender)}</text>'
        yield f'<rect x="{_LEFT}" y="{y + 2}" width="{middle * scale:.1f}" height="{_BAR - 8}" fill="{colour}"/>'
        yield f'<path class="axis" d="M{low:.1f} {y + 11}H{high:.1f}"/>'
        yield f'<text x="{high + 8:.1f}" y="{y + 15}">{number(middle)}/s</text>'
    yield f'<text class="small" x="{_LEFT}" y="{_TOP + len(summaries) * _BAR + 18}">median; line: least to most</text>'


_PLOT_BOTTOM = 330


def _curves(summaries: Sequence[Summary]) -> Iterator[str]:
    """Which share took at most so long; the axis of time is logarithmic."""
    least = max(min(one.spread[0] for one in summaries), 1e-3)
    low = math.floor(math.log10(least))
    high = max(math.ceil(math.log10(max(one.spread[-1] for one in summaries))), low + 1)
    left, right = 60, _WIDTH - 220
    yield from _axes(left, right, low, high)
    for place, one in enumerate(summaries):
        colour, values = _COLOURS[place % len(_COLOURS)], one.spread
        points = []
        for step in range(201):
            value = max(values[min(step * len(values) // 200, len(values) - 1)], least)
            x = left + (math.log10(value) - low) / (high - low) * (right - left)
            points.append(f"{x:.1f},{_PLOT_BOTTOM - step / 200 * (_PLOT_BOTTOM - _TOP):.1f}")
        yield f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{" ".join(points)}"/>'
        y = _TOP + 14 + 20 * place
        yield f'<text x="{right + 16}" y="{y}" style="fill:{colour}">{escape(one.contender)}</text>'


def _axes(left: int, right: int, low: int, high: int) -> Iterator[str]:
    for exponent in range(low, high + 1):
        x = left + (exponent - low) / (high - low) * (right - left)
        yield f'<path class="axis" stroke-opacity=".4" d="M{x:.1f} {_TOP}V{_PLOT_BOTTOM}"/>'
        label = f"{10.0**exponent:g} ms"
        yield f'<text class="small" x="{x:.1f}" y="{_PLOT_BOTTOM + 18}" text-anchor="middle">{label}</text>'
    for share in (0, 50, 100):
        y = _PLOT_BOTTOM - share / 100 * (_PLOT_BOTTOM - _TOP)
        yield f'<path class="axis" stroke-opacity=".4" d="M{left} {y:.1f}H{right}"/>'
        yield f'<text class="small" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{share} %</text>'
