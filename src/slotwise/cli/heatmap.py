"""A heat map as a picture: days down, hours across. SVG is written here; PNG is drawn by Pillow, if it is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import log
from pathlib import Path
from typing import Final

from slotwise.errors import ConfigurationError

_CELL: Final = (28, 18)
_LEFT, _TOP, _RIGHT, _BOTTOM = 64, 56, 24, 52
_INK, _PAPER, _EMPTY = "#1f2933", "#ffffff", "#eef1f4"
#: From few to many, readable without colours too: each is darker than the one before.
_HEAT: Final = ("#d3e5f2", "#a6cde4", "#6cb0d6", "#3a8fc4", "#1a6cab", "#0b4a85", "#082f5c")


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle; `told` is shown where a picture can."""

    x: int
    y: int
    width: int
    height: int
    colour: str
    told: str = ""


@dataclass(frozen=True, slots=True)
class Label:
    """A line of text, its middle at `y`; it ends at `x` if `end`."""

    x: int
    y: int
    text: str
    size: int = 12
    end: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """What is drawn, in pixels."""

    width: int
    height: int
    shapes: tuple[Box | Label, ...]


def draw(file: Path, title: str, rows: Sequence[str], counts: Sequence[Sequence[int]]) -> None:
    """Write the heat map of these rows of 24 hours. Raises ConfigurationError if Pillow is needed and missing."""
    picture = lay_out(title, rows, counts)
    if file.suffix.lower() == ".png":
        _write_png(file, picture)
    else:
        file.write_text(svg(picture), encoding="utf-8")


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


def svg(picture: Picture) -> str:
    """The picture as an SVG document that needs nothing else."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{picture.width}" height="{picture.height}" '
        f'viewBox="0 0 {picture.width} {picture.height}" font-family="system-ui, sans-serif" role="img">'
    )
    paper = f'<rect width="100%" height="100%" fill="{_PAPER}"/>'
    return "\n".join([head, paper, *map(_element, picture.shapes), "</svg>", ""])


def _element(shape: Box | Label) -> str:
    if isinstance(shape, Label):
        anchor = ' text-anchor="end"' if shape.end else ""
        place = f'x="{shape.x}" y="{shape.y}" font-size="{shape.size}" fill="{_INK}" dominant-baseline="central"'
        return f"<text {place}{anchor}>{escape(shape.text)}</text>"
    place = f'x="{shape.x}" y="{shape.y}" width="{shape.width}" height="{shape.height}"'
    told = f"<title>{escape(shape.told)}</title>" if shape.told else ""
    return f'<rect {place} rx="2" fill="{shape.colour}">{told}</rect>'


def _write_png(file: Path, picture: Picture) -> None:
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise ConfigurationError(
            f"--plot {file}: PNG needs Pillow; run: pip install 'slotwise[plot]', or write .svg"
        ) from None
    scale = 2  # for sharp text on sharp screens
    image = Image.new("RGB", (picture.width * scale, picture.height * scale), _PAPER)
    canvas = ImageDraw.Draw(image)
    for shape in picture.shapes:
        x, y = shape.x * scale, shape.y * scale
        if isinstance(shape, Label):
            font = ImageFont.load_default(shape.size * scale)
            canvas.text((x, y), shape.text, fill=_INK, font=font, anchor="rm" if shape.end else "lm")
        else:
            canvas.rectangle((x, y, x + shape.width * scale - 1, y + shape.height * scale - 1), fill=shape.colour)
    image.save(file)
