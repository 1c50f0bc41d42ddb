"""Shapes: a type of a payload as a pair of functions, typed value to plain value and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Shape:
    """``write`` makes a plain value of a typed one, ``read`` the reverse; both raise Misfit for what does not fit."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    #: Of which types the plain values may be.
    stored: frozenset[type] = frozenset()
    #: Typed and plain values are the same.
    is_plain: bool = False
    #: The plain values, where they are a few.
    few: tuple[Any, ...] | None = None
    #: Keys of which each plain value has one of these values.
    tags: Mapping[str, frozenset[Any]] = field(default_factory=dict)

    def may_be_taken_for(self, other: Shape) -> bool:
        """Whether a plain value of one may be read as another typed value by the other."""
        if (self.is_plain and other.is_plain) or not self.stored & other.stored:
            return False
        if self.few is not None:
            return any(other.reads(value) for value in self.few)
        if other.few is not None:
            return other.may_be_taken_for(self)
        return not any(self.tags[key].isdisjoint(other.tags[key]) for key in self.tags.keys() & other.tags.keys())

    def reads(self, value: Any) -> bool:
        try:
            self.read(value)
        except Misfit:
            return False
        return True


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
#: What JSON tells apart.
PLAIN_TYPES = frozenset({type(None), bool, int, float, str, list, dict})
#: Whatever the codec can say.
ANYTHING = Shape(text_keyed, same, PLAIN_TYPES, is_plain=True)

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

    return Shape(check, check, frozenset(accepted), is_plain=True)


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

    return Shape(write, read, frozenset({str}))


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

    is_plain = all(type(value) is type(stored) and value == stored for value, stored in plain.items())
    few = tuple(plain.values())
    return Shape(write, read, frozenset(map(type, few)), is_plain=is_plain, few=few)


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

    return Shape(write, read, frozenset({list}), is_plain=make is list and item.is_plain)


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
        frozenset({list}),
    )


def dict_of(kind: Any, item: Shape) -> Shape:
    def convert(value: Any, function: Callable[[Any], Any]) -> dict[str, Any]:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise wrong(kind, value)
        return {key: member(function, each, key) for key, each in value.items()}

    return Shape(
        lambda value: convert(value, item.write),
        lambda value: convert(value, item.read),
        frozenset({dict}),
        is_plain=item.is_plain,
    )


def refuse_more(names: Iterable[str], known: Iterable[str], kind: Any) -> None:
    """Raise Misfit for a name that is not among the known ones: its value would be left out, and nobody told."""
    if more := sorted(set(map(str, names)).difference(known)):
        raise Misfit(f"would be lost; {called(kind)} has {', '.join(known) or 'none'}", f".{more[0]}")


def member(convert: Callable[[Any], Any], value: Any, name: str) -> Any:
    try:
        return convert(value)
    except Misfit as misfit:
        raise misfit.within(f".{name}") from None


def foreign(
    kind: type,
    write: Callable[[Any], Any],
    read: Callable[[Any], Any],
    *,
    names: Callable[[type], Iterable[str]],
    stored: frozenset[type] = frozenset({dict}),
    tags: Mapping[str, frozenset[Any]],
) -> Shape:
    """A model of a library. An instance may hold what its type forbids: what is written is read again, as later."""
    known = list(names(kind))

    def checked(value: Any) -> Any:
        if not isinstance(value, kind):
            raise wrong(kind, value)
        if type(value) is not kind:
            refuse_more(names(type(value)), known, kind)
        plain = write(value)
        validated(plain)
        return plain

    def validated(value: Any) -> Any:
        try:
            return read(value)
        except ValueError as error:  # of both libraries, over several lines
            said = [line for line in str(error).splitlines() if not line.lstrip().startswith("For further information")]
            raise Misfit(" ".join(" ".join(said).split())) from None

    return Shape(checked, validated, stored, tags=tags)
