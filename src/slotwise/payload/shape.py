"""The converter of one type, the plain values that JSON has, and what does not fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ParamSpec, TypeAlias, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

#: Converts a typed value to a plain one if the flag is set, else a plain one to a typed one;
#: raises Misfit.
Convert: TypeAlias = Callable[[object, bool], object]

#: Containers deeper than this are refused; readers of JSON have a limit, too.
DEEPEST = 100
_LONGEST_PATH = 100
#: Types all of whose values are the same in JSON.
ALWAYS_PLAIN = frozenset({str, int, bool, type(None)})


class Misfit(ValueError):
    """A value of the wrong type, with its path within the payload."""

    #: What is wrong with the payload as a whole.
    verdict = "does not fit its type"

    def __init__(self, problem: str, path: str = "") -> None:
        shown = path if len(path) <= _LONGEST_PATH else f"{path[:_LONGEST_PATH]}…"
        super().__init__(f"{shown.lstrip('.')}: {problem}" if path else problem)
        self.problem = problem
        self.path = path

    def within(self, place: object) -> Misfit:
        """Return the same problem as one of the container whose member this is."""
        step = f"[{place}]" if isinstance(place, int) else f".{place}"
        return type(self)(self.problem, step + self.path)


class NotJson(Misfit):
    """A value that JSON would change or cannot express."""

    verdict = "cannot be written as JSON"


def member(place: object, act: Callable[P, R], *given: P.args, **more: P.kwargs) -> R:
    """Call ``act`` for what is at a place of a container: under a name, or at an index."""
    try:
        return act(*given, **more)
    except Misfit as misfit:
        raise misfit.within(place) from None


@dataclass(frozen=True, slots=True)
class Shape:
    """The converter of a type."""

    convert: Convert
    #: The types of the plain values.
    stored: frozenset[type] = frozenset()
    #: Typed and plain values are the same.
    is_plain: bool = False
    #: The plain values, if there are only a few.
    few: tuple[object, ...] | None = None
    #: Keys whose values tell plain values apart.
    tags: Mapping[str, frozenset[object]] = field(default_factory=dict)

    def may_be_taken_for(self, other: Shape) -> bool:
        """Return whether a plain value of one may be read by the other as a different typed
        value.
        """
        if (self.is_plain and other.is_plain) or not self.stored & other.stored:
            return False
        if self.few is not None:
            return any(other.reads(value) for value in self.few)
        if other.few is not None:
            return other.may_be_taken_for(self)
        return not any(
            self.tags[key].isdisjoint(other.tags[key])
            for key in self.tags.keys() & other.tags.keys()
        )

    def reads(self, value: object) -> bool:
        """Return whether this plain value is one of the type."""
        try:
            self.convert(value, False)
        except Misfit:
            return False
        return True


def finite(number: float) -> float:
    """Return the number. Raise Misfit for one that JSON cannot express."""
    if not math.isfinite(number):
        raise NotJson(f"{number!r} is not a number of JSON; write None, or a string")
    return number


def plain(value: object, writing: bool) -> object:
    """Return the value. Raise Misfit if it is to be written and JSON would change or cannot
    express it.
    """
    if writing:
        refuse_non_json(value, (list,))
    return value


def refuse_non_json(value: object, lists: tuple[type, ...], depth: int = 0) -> None:
    """Raise Misfit for a part that JSON cannot express, or would change; ``lists`` become lists."""
    if isinstance(value, dict):
        _check_members(value, value.items(), lists, depth)
    elif isinstance(value, list | tuple) and isinstance(value, lists):
        _check_members(value, enumerate(value), lists, depth)
    elif isinstance(value, float):
        finite(value)
    elif value is not None and not isinstance(value, str | int):
        fate = (
            "comes back as a list"
            if isinstance(value, tuple)
            else "JSON cannot express"
        )
        raise NotJson(
            f"{value!r:.80} is of type {type(value).__name__}, which {fate}; declare the "
            f"type of the data, or pass a {'list' if isinstance(value, tuple) else 'string'}"
        )


def _check_members(
    value: object,
    members: Iterable[tuple[object, object]],
    lists: tuple[type, ...],
    depth: int,
) -> None:
    if depth == DEEPEST:
        raise NotJson(
            f"it contains itself or is too deep; at most {DEEPEST} levels are allowed"
        )
    for place, each in members:
        if isinstance(value, dict) and not isinstance(place, str):
            raise NotJson(
                f"dict keys must be strings, got {place!r:.80}; write {str(place)!r:.80}"
            )
        if type(each) not in ALWAYS_PLAIN:
            member(place, refuse_non_json, each, lists, depth + 1)


#: The types that JSON distinguishes.
PLAIN_TYPES = frozenset({type(None), bool, int, float, str, list, dict})
#: Any value of JSON.
ANYTHING = Shape(plain, PLAIN_TYPES, is_plain=True)
