"""Plain values, as JSON has them: what it cannot say, and what was left out."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from slotwise.payload.converters import Misfit, member

#: What lies deeper contains itself, or is deep.
_DEEPEST = 100


def whole(given: Any, again: Any) -> Any:
    """As it is, if ``again``, written of what was read of it, has all its keys; else raise Misfit."""
    place: Any
    if isinstance(given, dict) and isinstance(again, dict):
        if more := sorted(given.keys() - again.keys()):
            raise Misfit("would be lost: the task takes nothing of this name", f".{more[0]}")
        for place, each in given.items():
            member(partial(whole, again=again[place]), each, place)
    elif isinstance(given, list) and isinstance(again, list):
        for place, (one, other) in enumerate(zip(given, again, strict=False)):
            try:
                whole(one, other)
            except Misfit as misfit:
                raise misfit.within(f"[{place}]") from None
    return given


def unwritable(plain: Any) -> Misfit | None:
    """The first value that JSON cannot say, with its place and the cure; None if there is none."""
    try:
        _written(plain, 0)
    except Misfit as misfit:
        return misfit
    return None


def _written(value: Any, depth: int) -> None:
    place: Any
    if depth == _DEEPEST or value is None or isinstance(value, str | int):
        return
    if isinstance(value, dict):
        for place, each in value.items():
            member(lambda one: _written(one, depth + 1), each, place)
    elif isinstance(value, list | tuple):
        for place, each in enumerate(value):
            try:
                _written(each, depth + 1)
            except Misfit as misfit:
                raise misfit.within(f"[{place}]") from None
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise Misfit(f"{value!r} is no number of JSON; write None, or a text")
    else:
        raise Misfit(
            f"{value!r:.80} is a {type(value).__name__}, for which JSON has no word; declare the type of the data, or "
            "write a text of it"
        )
