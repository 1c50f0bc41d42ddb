"""Pictures of a few shapes, as SVG, or as PNG if Pillow is installed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final, TypeAlias

from slotwise import ConfigurationError

_INK: Final = "#1f2933"
_PAPER: Final = "#ffffff"
#: Pixels of a PNG per pixel of a picture, for sharp text on dense screens.
_SHARP: Final = 2
#: Replacements for characters that Pillow's font lacks.
_PLAINER: Final = str.maketrans({"×": "x", "–": "-", "µ": "u", "≤": "<=", "≥": ">="})


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle; `told` is its tooltip."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    told: str = ""


@dataclass(frozen=True, slots=True)
class Label:
    """A line of text, centred vertically at `y`; it ends at `x` if `end`."""

    x: float
    y: float
    text: str
    size: int = 12
    end: bool = False
    colour: str = _INK


@dataclass(frozen=True, slots=True)
class Stroke:
    """A line from point to point."""

    points: Sequence[tuple[float, float]]
    colour: str
    width: int = 1


Shape: TypeAlias = Box | Label | Stroke


@dataclass(frozen=True, slots=True)
class Picture:
    """Shapes in pixels; later ones are drawn above."""

    width: int
    height: int
    shapes: tuple[Shape, ...]

    def write(self, file: Path) -> None:
        """Write a PNG if the name ends so, else an SVG. Raise ConfigurationError if Pillow is
        needed and missing.
        """
        if file.suffix.lower() == ".png":
            _write_png(file, self)
        else:
            file.write_text(svg(self), encoding="utf-8")


def svg(picture: Picture) -> str:
    """Return the picture as a self-contained SVG document."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{picture.width}" '
        f'height="{picture.height}" '
        f'viewBox="0 0 {picture.width} {picture.height}" font-family="system-ui, '
        'sans-serif" role="img">'
    )
    paper = f'<rect width="100%" height="100%" fill="{_PAPER}"/>'
    return "\n".join([head, paper, *map(_element, picture.shapes), "</svg>", ""])


def _element(shape: Shape) -> str:
    if isinstance(shape, Stroke):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
        return (
            f'<polyline fill="none" stroke="{shape.colour}" '
            f'stroke-width="{shape.width}" points="{points}"/>'
        )
    if isinstance(shape, Label):
        anchor = ' text-anchor="end"' if shape.end else ""
        place = f'x="{shape.x:g}" y="{shape.y:g}" font-size="{shape.size}"'
        return (
            f'<text {place} fill="{shape.colour}" '
            f'dominant-baseline="central"{anchor}>{escape(shape.text)}</text>'
        )
    place = f'x="{shape.x:g}" y="{shape.y:g}" width="{shape.width:g}" height="{shape.height:g}"'
    told = f"<title>{escape(shape.told)}</title>" if shape.told else ""
    return f'<rect {place} rx="2" fill="{shape.colour}">{told}</rect>'


def _write_png(file: Path, picture: Picture) -> None:
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise ConfigurationError(
            f"--plot {file}: PNG needs Pillow; run: pip install 'slotwise[plot]', or write .svg"
        ) from None
    image = Image.new("RGB", (picture.width * _SHARP, picture.height * _SHARP), _PAPER)
    canvas = ImageDraw.Draw(image)
    for shape in picture.shapes:
        if isinstance(shape, Stroke):
            points = [(x * _SHARP, y * _SHARP) for x, y in shape.points]
            canvas.line(
                points, fill=shape.colour, width=shape.width * _SHARP, joint="curve"
            )
        elif isinstance(shape, Label):
            place = (shape.x * _SHARP, shape.y * _SHARP)
            anchor = "rm" if shape.end else "lm"
            font = ImageFont.load_default(shape.size * _SHARP)
            canvas.text(
                place,
                shape.text.translate(_PLAINER),
                fill=shape.colour,
                font=font,
                anchor=anchor,
            )
        else:
            x = shape.x * _SHARP
            y = shape.y * _SHARP
            right = x + shape.width * _SHARP - 1
            bottom = y + shape.height * _SHARP - 1
            canvas.rectangle((x, y, max(right, x), bottom), fill=shape.colour)
    image.save(file)
