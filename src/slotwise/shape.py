"""Shapes: a type of a payload as a pair of functions, typed value to plain value and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Shape:
    """``write`` makes a plain value of a typed one, ``read`` the reverse; both raise Misfit for what does not fit."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


class Misfit(ValueError):
    """A value that is not of its type, and where within the whole it stands."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(f"{path.lstrip('.')}: {problem}" if path else problem)
        self.problem, self.path = problem, path

    def within(self, place: str) -> Misfit:
        return Misfit(self.problem, f"{place}{self.path}")


def same(value: Any) -> Any:
    return value


def text_keyed(value: Any) -> Any:
    """As it is: JSON would silently make texts of other keys, and the handler see other data than were given."""
    place: Any
    if isinstance(value, dict):
        for place, each in value.items():
            if not isinstance(place, str):
                raise Misfit(f"the keys of a dict are texts, got {place!r:.80}; write {str(place)!r:.80}")
            if isinstance(each, _CONTAINERS):
                member(text_keyed, each, place)
    elif isinstance(value, list | tuple):
        for place, each in enumerate(value):
            if isinstance(each, _CONTAINERS):
                try:
                    text_keyed(each)
                except Misfit as misfit:
                    raise misfit.within(f"[{place}]") from None
    return value


_CONTAINERS = (dict, list, tuple)
#: Whatever the codec can say.
ANYTHING = Shape(text_keyed, same)

#: Types that JSON has no word for: as text, and how it is read again.
TEXTS: dict[type, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    datetime: (datetime.isoformat, datetime.fromisoformat),
    date: (date.isoformat, date.fromisoformat),
    time: (time.isoformat, time.fromisoformat),
    UUID: (str, UUID),
    Decimal: (str, Decimal),
}


def called(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) else str(kind)


def wrong(kind: Any, value: Any) -> Misfit:
    return Misfit(f"expected {called(kind)}, got {value!r:.80}")


def scalar(kind: type) -> Shape:
    accepted: tuple[type, ...] = (int, float) if kind is float else (kind,)

    def check(value: Any) -> Any:
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise wrong(kind, value)
        return value

    return Shape(check, check)


def text(kind: type) -> Shape:
    to_text, from_text = TEXTS[kind]

    def write(value: Any) -> str:
        if not isinstance(value, kind) or (kind is date and isinstance(value, datetime)):
            raise wrong(kind, value)
        return to_text(value)

    def read(value: Any) -> Any:
        try:
            return from_text(value if isinstance(value, str) else None)  # type: ignore[arg-type]
        except (ValueError, TypeError, ArithmeticError, AttributeError):
            raise wrong(kind, value) from None

    return Shape(write, read)


def among(kind: Any, plain: dict[Any, Any]) -> Shape:
    """One of a few values, each with its plain form."""
    values = {(type(stored), stored): value for value, stored in plain.items()}

    def write(value: Any) -> Any:
        try:
            stored = plain[value]
        except (KeyError, TypeError):
            raise wrong(kind, value) from None
        return stored

    def read(value: Any) -> Any:
        try:
            return values[type(value), value]
        except (KeyError, TypeError):
            raise wrong(kind, value) from None

    return Shape(write, read)


def _items(convert: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    converted = []
    for place, value in enumerate(values):
        try:
            converted.append(convert(value))
        except Misfit as misfit:
            raise misfit.within(f"[{place}]") from None
    return converted


def list_of(kind: Any, accepted: Any, make: Callable[[Any], Any], item: Shape) -> Shape:
    def write(value: Any) -> list[Any]:
        if not isinstance(value, accepted):
            raise wrong(kind, value)
        return _items(item.write, list(value))

    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise wrong(kind, value)
        return make(_items(item.read, value))

    return Shape(write, read)


def fixed(kind: Any, shapes: Sequence[Shape]) -> Shape:
    """A tuple with a type for each place."""

    def checked(value: Any, accepted: Any) -> Any:
        if not isinstance(value, accepted) or len(value) != len(shapes):
            raise wrong(kind, value)
        return value

    return Shape(
        lambda value: [shape.write(each) for shape, each in zip(shapes, checked(value, tuple), strict=True)],
        lambda value: tuple(
            shape.read(each) for shape, each in zip(shapes, checked(value, (list, tuple)), strict=True)
        ),
    )


def dict_of(kind: Any, item: Shape) -> Shape:
    def convert(value: Any, function: Callable[[Any], Any]) -> dict[str, Any]:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise wrong(kind, value)
        return {key: member(function, each, key) for key, each in value.items()}

    return Shape(lambda value: convert(value, item.write), lambda value: convert(value, item.read))


def member(convert: Callable[[Any], Any], value: Any, name: str) -> Any:
    try:
        return convert(value)
    except Misfit as misfit:
        raise misfit.within(f".{name}") from None


def foreign(kind: type, write: Callable[[Any], Any], read: Callable[[Any], Any]) -> Shape:
    """A model of a library. An instance may hold what its type forbids: what is written is read again, as later."""

    def checked(value: Any) -> Any:
        if not isinstance(value, kind):
            raise wrong(kind, value)
        plain = write(value)
        validated(plain)
        return plain

    def validated(value: Any) -> Any:
        try:
            return read(value)
        except ValueError as error:  # of both libraries, over several lines
            said = [line for line in str(error).splitlines() if not line.lstrip().startswith("For further information")]
            raise Misfit(" ".join(" ".join(said).split())) from None

    return Shape(checked, validated)
