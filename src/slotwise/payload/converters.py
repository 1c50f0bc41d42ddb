"""Converters for the types of payloads: a pair of functions per type, typed value to plain value and back.

Plain values are what JSON can express. This file never imports pydantic or msgspec: their models exist only where
these libraries are loaded already.

msgspec's own decoder cannot replace this file, because it loses data: it writes NaN as null, rounds UTC offsets to
minutes, ignores a dataclass's own ``__init__``, and cannot read fields with ``init=False``. It also rejects tagged
unions of TypedDicts and enums of floats or tuples, and its errors have neither keys nor values.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from functools import lru_cache
from itertools import combinations
from typing import (
    Annotated,
    Any,
    Literal,
    NewType,
    NotRequired,
    Required,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)
from uuid import UUID

from slotwise.errors import InvalidPayload
from slotwise.payload.payload import ANYTHING, PLAIN_TYPES, Convert, Misfit, Shape, member

K = TypeVar("K")
#: Makes a collection of its members.
Collect: TypeAlias = Callable[[Iterable[object]], object]

#: Types without a JSON form: how they are written as strings and read again.
TEXTS: dict[type, tuple[Callable[[Any], str], Callable[[str], object]]] = {
    datetime: (datetime.isoformat, datetime.fromisoformat),
    date: (date.isoformat, date.fromisoformat),
    time: (time.isoformat, time.fromisoformat),
    UUID: (str, UUID),
    Decimal: (str, Decimal),
}


def called(kind: object) -> str:
    return kind.__qualname__ if isinstance(kind, type) else str(kind)


def wrong(kind: object, value: object) -> Misfit:
    return Misfit(f"expected {called(kind)}, got {value!r:.80}")


def instance(value: object, accepted: type[K] | tuple[type[K], ...], kind: object) -> K:
    """Return the value if it is an instance of what is accepted for this type. Raise Misfit."""
    if not isinstance(value, accepted):
        raise wrong(kind, value)
    return value


def scalar(kind: type) -> Shape:
    accepted: tuple[type, ...] = (int, float) if kind is float else (kind,)

    def check(value: object) -> object:
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise wrong(kind, value)
        return value

    return Shape(check, check, frozenset(accepted), is_plain=True)


def text(kind: type) -> Shape:
    to_text, from_text = TEXTS[kind]

    def write(value: object) -> str:
        if not isinstance(value, kind) or (kind is date and isinstance(value, datetime)):
            raise wrong(kind, value)
        return to_text(value)

    def read(value: object) -> object:
        try:
            return from_text(value if isinstance(value, str) else None)  # type: ignore[arg-type]
        except (ValueError, TypeError, ArithmeticError, AttributeError):
            raise wrong(kind, value) from None

    return Shape(write, read, frozenset({str}))


def among(kind: object, plain: Mapping[object, object]) -> Shape:
    """Return the converter for one of a few values, each with its plain form."""
    values = {(type(stored), stored): value for value, stored in plain.items()}

    def write(value: object) -> object:
        try:
            stored = plain[value]
        except (KeyError, TypeError):
            raise wrong(kind, value) from None
        return stored

    def read(value: object) -> object:
        try:
            return values[type(value), value]
        except (KeyError, TypeError):
            raise wrong(kind, value) from None

    is_plain = all(type(value) is type(stored) and value == stored for value, stored in plain.items())
    few = tuple(plain.values())
    return Shape(write, read, frozenset(map(type, few)), is_plain=is_plain, few=few)


def _items(convert: Convert, values: Iterable[object]) -> list[object]:
    return [member(convert, value, place) for place, value in enumerate(values)]


def list_of(kind: object, accepted: type | tuple[type, ...], make: Collect, item: Shape) -> Shape:
    return Shape(
        lambda value: _items(item.write, instance(value, accepted, kind)),
        lambda value: make(_items(item.read, instance(value, (list, tuple), kind))),
        frozenset({list}),
        is_plain=make is list and item.is_plain,
    )


def fixed(kind: object, shapes: Sequence[Shape]) -> Shape:
    """Return the converter for a tuple with a type for each place."""

    def checked(value: object, accepted: type | tuple[type, ...]) -> Sequence[object]:
        found: Sequence[object] = instance(value, accepted, kind)
        if len(found) != len(shapes):
            raise wrong(kind, value)
        return found

    return Shape(
        lambda value: [shape.write(each) for shape, each in zip(shapes, checked(value, tuple), strict=True)],
        lambda value: tuple(
            shape.read(each) for shape, each in zip(shapes, checked(value, (list, tuple)), strict=True)
        ),
        frozenset({list}),
    )


def dict_of(kind: object, item: Shape) -> Shape:
    def convert(value: object, function: Convert) -> dict[str, object]:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise wrong(kind, value)
        return {key: member(function, each, key) for key, each in value.items()}

    return Shape(
        lambda value: convert(value, item.write),
        lambda value: convert(value, item.read),
        frozenset({dict}),
        is_plain=item.is_plain,
    )


def refuse_more(names: Iterable[str], known: Iterable[str], kind: object) -> None:
    """Raise Misfit for an unknown name: its value would silently be lost."""
    if more := sorted(set(map(str, names)).difference(known)):
        raise Misfit(f"would be lost; {called(kind)} has {', '.join(known) or 'none'}", f".{more[0]}")


def foreign(
    kind: type,
    write: Convert,
    read: Convert,
    *,
    names: Callable[[type], Iterable[str]],
    stored: frozenset[type] = frozenset({dict}),
    tags: Mapping[str, frozenset[object]],
) -> Shape:
    """Return the converter for a model of a library. A written value is read again, as an instance may be invalid."""
    known = list(names(kind))

    def checked(value: object) -> object:
        instance(value, kind, kind)
        if type(value) is not kind:
            refuse_more(names(type(value)), known, kind)
        plain = write(value)
        validated(plain)
        return plain

    def validated(value: object) -> object:
        try:
            return read(value)
        except ValueError as error:  # both libraries raise it, with several lines
            said = [line for line in str(error).splitlines() if not line.lstrip().startswith("For further information")]
            raise Misfit(" ".join(" ".join(said).split())) from None

    return Shape(checked, validated, stored, tags=tags)


_WRAPPERS = (Annotated, Required, NotRequired)
_LISTS: dict[object, Collect] = {list: list, set: set, frozenset: frozenset, Sequence: list}


@lru_cache(maxsize=512)
def shape_of(kind: Any) -> Shape:
    """Return the converter for a type. Raise InvalidPayload for one that no payload can have."""
    while isinstance(kind, NewType) or get_origin(kind) in _WRAPPERS or hasattr(kind, "__value__"):
        kind = getattr(kind, "__supertype__", None) or getattr(kind, "__value__", None) or get_args(kind)[0]
    if kind is Any or kind is object:
        return ANYTHING
    if kind is None or kind in (type(None), bool, int, float, str):
        return scalar(type(None) if kind is None else kind)
    if kind in TEXTS:
        return text(kind)
    if get_origin(kind) is not None or kind in _LISTS or kind in (tuple, dict, Mapping):
        return _compound(kind)
    found = _record(kind) if isinstance(kind, type) else None
    if found is None:
        raise InvalidPayload(
            f"{called(kind)} is not a type for a payload; use str, int, float, bool, None, list, dict, a dataclass, a "
            "TypedDict, an Enum, datetime, date, time, UUID, Decimal, or a model of pydantic or msgspec"
        )
    return found


def _compound(kind: object) -> Shape:
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, types.UnionType):
        return _union(kind, arguments)
    if origin is Literal:
        return among(kind, {value: value for value in arguments})
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis) and arguments:
        return fixed(kind, [shape_of(argument) for argument in arguments])
    if isinstance(origin, type) and (origin is tuple or origin in _LISTS):
        item = shape_of(arguments[0]) if arguments else ANYTHING
        return list_of(kind, (tuple, list) if origin is Sequence else origin, _LISTS.get(origin, tuple), item)
    if origin in (dict, Mapping) and (not arguments or arguments[0] is str):
        return dict_of(kind, shape_of(arguments[1]) if arguments else ANYTHING)
    raise InvalidPayload(
        f"{kind} is not a type for a payload; the keys of a dict are str, other generics cannot be read"
    )


def _union(kind: object, arguments: Sequence[object]) -> Shape:
    shapes = [shape_of(argument) for argument in arguments]
    for (one, shape), (other, second) in combinations(zip(arguments, shapes, strict=True), 2):
        if shape.may_be_taken_for(second):
            raise InvalidPayload(
                f"{kind}: which of {called(one)} and {called(other)} a stored one was cannot be told; take one of "
                "them, a dataclass with a field for each, or a tagged union of pydantic or msgspec"
            )

    def first(direction: Sequence[Convert], value: object) -> object:
        problems = []
        for function in direction:
            try:
                return function(value)
            except Misfit as misfit:
                problems.append(misfit)
        deepest = max(problems, key=lambda misfit: len(misfit.path))
        # None fits only None: with one other type, the error of that type is more helpful
        raise deepest if deepest.path or len(set(arguments) - {type(None)}) == 1 else wrong(kind, value)

    writers, readers = [shape.write for shape in shapes], [shape.read for shape in shapes]
    return Shape(
        lambda value: first(writers, value),
        lambda value: first(readers, value),
        frozenset().union(*(shape.stored for shape in shapes)),
        is_plain=all(shape.is_plain for shape in shapes),
    )


def _record(kind: type) -> Shape | None:
    """Return the converter for a class with named fields, or None."""
    if issubclass(kind, enum.Enum):
        return among(kind, {member: member.value for member in kind})
    if (library := _model_of("pydantic", "BaseModel", kind)) is not None:
        return _pydantic(library, kind)
    if (library := _model_of("msgspec", "Struct", kind)) is not None:
        return _msgspec(library, kind)
    if is_typeddict(kind):
        return _typed_dict(kind)
    return _data_class(kind) if dataclasses.is_dataclass(kind) else None


def _pydantic(library: types.ModuleType, kind: Any) -> Shape:
    fields = kind.model_fields.items()
    literals = {spec.serialization_alias or spec.alias or name: spec.annotation for name, spec in fields}
    stored = PLAIN_TYPES - {type(None)} if issubclass(kind, library.RootModel) else frozenset({dict})
    return foreign(
        kind, _dumped, kind.model_validate, names=lambda model: model.model_fields,  # type: ignore[attr-defined]
        stored=stored, tags=_tags(literals),
    )  # fmt: skip


def _msgspec(library: types.ModuleType, kind: Any) -> Shape:
    how = kind.__struct_config__
    return foreign(
        kind, library.to_builtins, lambda value: library.convert(value, kind),
        names=lambda model: model.__struct_fields__,  # type: ignore[attr-defined]
        stored=frozenset({list if how.array_like else dict}),
        tags={} if how.tag is None or how.array_like else {how.tag_field: frozenset({how.tag})},
    )  # fmt: skip


def _tags(hints: Mapping[str, object]) -> dict[str, frozenset[object]]:
    return {name: frozenset(get_args(hint)) for name, hint in hints.items() if get_origin(hint) is Literal}


def _dumped(model: Any) -> object:
    """Dump a model as it reads itself: by aliases, without computed fields. Reading reports wrong values."""
    return model.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False)


def _model_of(library: str, base: str, kind: type) -> types.ModuleType | None:
    """Return the library if it is loaded and ``kind`` is one of its models."""
    module = sys.modules.get(library)
    return module if module is not None and issubclass(kind, getattr(module, base, ())) else None


def _hints(kind: type) -> dict[str, object]:
    try:
        return get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise InvalidPayload(f"{kind.__qualname__}: {error}; define it at the top level of a module") from None


def _data_class(kind: type) -> Shape:
    hints = _hints(kind)
    named = [spec.name for spec in dataclasses.fields(kind)]
    fields = {spec.name: shape_of(hints[spec.name]) for spec in dataclasses.fields(kind) if spec.init}

    def write(value: object) -> dict[str, object]:
        instance(value, kind, kind)
        if type(value) is not kind:
            refuse_more((spec.name for spec in dataclasses.fields(value)), named, kind)  # type: ignore[arg-type]
        return {name: member(shape.write, getattr(value, name), name) for name, shape in fields.items()}

    def read(value: object) -> object:
        given: Mapping[str, object] = instance(value, Mapping, kind)
        try:
            return kind(**{name: member(fields[name].read, given[name], name) for name in fields if name in given})
        except TypeError as error:  # a field without a default is missing
            raise Misfit(str(error)) from None

    return Shape(write, read, frozenset({dict}))


def _typed_dict(kind: Any) -> Shape:
    hints = _hints(kind)
    shapes = {name: shape_of(hint) for name, hint in hints.items()}
    # string annotations show this only once resolved
    optional = {name for name, hint in hints.items() if get_origin(hint) is NotRequired}
    required = {name for name, hint in hints.items() if get_origin(hint) is Required}
    required |= kind.__required_keys__ - optional

    def convert(value: object, direction: str) -> dict[str, object]:
        given: Mapping[str, object] = instance(value, Mapping, kind)
        if missing := required - given.keys():
            raise Misfit(f"{min(missing)} is missing")
        if direction == "write":
            refuse_more(given, shapes, kind)
        there = ((name, shape) for name, shape in shapes.items() if name in given)
        return {name: member(getattr(shape, direction), given[name], name) for name, shape in there}

    return Shape(lambda value: convert(value, "write"), lambda value: convert(value, "read"), frozenset({dict}))
