"""What a worker would read, compared with what was given."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from functools import lru_cache
from typing import TypeAlias, cast
from uuid import UUID

from slotwise.payload.shape import ALWAYS_PLAIN, Misfit, member

#: The members of a container by key or index, or the fields of a record by name.
Parts: TypeAlias = Mapping[object, object]
#: Further types of values that are no containers.
_SCALARS = frozenset({float, datetime, date, time, Decimal, UUID})


def refuse_changes(given: object, again: object, in_model: bool = False) -> None:
    """Raise Misfit at the first place where ``again``, as a worker would read it, differs from
    ``given``.

    ``in_model``: a tuple must not return as a list. Elsewhere only ``Sequence`` accepts both.
    """
    if is_surely_same(given, again):
        return
    parts = _parts(given)
    others = _parts(again)
    if parts is None or others is None:
        if not _is_same(given, again):
            raise _changed(given, again)
        return
    refuse_loss(parts, others)
    if len(parts) != len(others) or _family(given, in_model) != _family(
        again, in_model
    ):
        raise _changed(given, again)
    in_model = in_model or _is_model(given)
    for place, each in parts.items():
        member(place, refuse_changes, each, others[place], in_model)


def is_surely_same(given: object, again: object) -> bool:
    """Return whether all parts have the same types and values. False: ``refuse_changes`` decides.

    It is quick, since nearly all payloads return as they were given.
    """
    kind: type = type(given)
    if kind is not type(again):
        return False
    if kind in ALWAYS_PLAIN:
        return given == again
    if kind is list:
        return _are_all_same(cast("list[object]", given), cast("list[object]", again))
    if kind is dict:
        one = cast("dict[object, object]", given)
        other = cast("dict[object, object]", again)
        return one.keys() == other.keys() and _are_all_same(
            list(one.values()), [other[place] for place in one]
        )
    if kind in _SCALARS:
        return _is_same(given, again)
    return _are_same_records(given, again)


def _are_same_records(given: object, again: object) -> bool:
    kind: type = type(given)
    names = _fields(kind)
    return (
        names is not None
        and not _has_more(given)
        and _are_all_same(
            [getattr(given, name, None) for name in names],
            [getattr(again, name, None) for name in names],
        )
    )


def _are_all_same(given: list[object], again: list[object]) -> bool:
    return len(given) == len(again) and all(map(is_surely_same, given, again))


def _has_more(value: object) -> bool:
    """Return whether a model has attributes beside its fields."""
    extra = getattr(value, "__pydantic_extra__", None)
    return bool(extra or getattr(value, "__pydantic_private__", None))


def _is_model(value: object) -> bool:
    kind: type = type(value)
    return _fields(kind) is not None and not dataclasses.is_dataclass(kind)


def refuse_lost_names(given: object, again: object) -> None:
    """Raise Misfit for a key of plain values that their round trip through the task's type has
    lost.
    """
    parts = _parts(given) or {}
    others = _parts(again) or {}
    if isinstance(given, dict) and isinstance(again, dict):
        refuse_loss(parts, others)
    for place in parts.keys() & others.keys():
        member(place, refuse_lost_names, parts[place], others[place])


def refuse_loss(parts: Collection[object], others: Collection[object]) -> None:
    """Raise Misfit for the first place that is only in ``parts``."""
    lost = [place for place in parts if place not in others]
    if lost and str(lost[0]) in others:  # JSON has no other keys
        text = f"would be changed: a worker would read the key {str(lost[0])!r}"
        raise Misfit(text).within(lost[0])
    if lost:
        names = ", ".join(map(str, others)) or "no names"
        raise Misfit(f"would be lost; the type has {names:.200}").within(lost[0])


def _changed(given: object, again: object) -> Misfit:
    read, meant = f"{again!r:.80}", f"{given!r:.80}"
    if read == meant:  # as of a SecretStr, which is written as asterisks
        return Misfit(
            f"would be changed: a worker would read another value than this {meant}; "
            f"{type(given).__name__} is not written as it is"
        )
    return Misfit(f"would be changed: a worker would read {read} instead of {meant}")


def _parts(value: object) -> Parts | None:
    """Return what a container or a record consists of; None for any other value."""
    kind: type = type(value)
    names = _fields(kind)
    if names is not None:
        parts: dict[object, object] = {
            name: getattr(value, name, None) for name in names
        }
        parts.update(getattr(value, "__pydantic_extra__", None) or {})
        parts.update(getattr(value, "__pydantic_private__", None) or {})
        return parts
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    return value if isinstance(value, Mapping) else None


@lru_cache(maxsize=512)
def _fields(kind: type) -> tuple[str, ...] | None:
    """Return the names of the fields of a dataclass or a model; None for other types."""
    if dataclasses.is_dataclass(kind):
        return tuple(spec.name for spec in dataclasses.fields(kind))
    found = getattr(kind, "__struct_fields__", getattr(kind, "model_fields", None))
    return None if found is None else tuple(found)


def _family(value: object, in_model: bool) -> type:
    """Return the type as far as it must be the same."""
    if isinstance(value, Mapping):
        return dict
    if isinstance(value, list) or (isinstance(value, tuple) and not in_model):
        return list
    return tuple if isinstance(value, tuple) else type(value)


def _is_same(given: object, again: object) -> bool:
    """Compare values that are no containers. A value may be of a subclass of the plain type that
    returns.
    """
    if isinstance(given, bool) or not isinstance(given, type(again)):
        return type(given) is int and type(again) is float and given == again
    if isinstance(given, datetime | time | Decimal):
        # as texts: comparisons know neither NaN, nor the repeated hour of another zone
        return str(given) == str(again) and _zone(given) == _zone(again)
    try:
        return bool(given == again) or bool(given != given and again != again)
    except Exception:  # the comparison of a user's type, or of an array
        return False


def _zone(value: object) -> object:
    """Return whether a time has a zone, and if not, its fold, which no text has."""
    if not isinstance(value, datetime | time):
        return None
    return value.fold if value.tzinfo is None else "aware"
