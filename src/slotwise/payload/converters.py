"""Converters for the types of payloads: typed value to plain value, which JSON can express, and
back.

This file never imports pydantic or msgspec: their models exist only where these libraries are
loaded already. msgspec's own decoder cannot replace it, because it loses data: it writes NaN as
null, rounds UTC offsets to minutes, ignores a dataclass's own ``__init__``, and cannot read fields
with ``init=False``. It also rejects tagged unions of TypedDicts and enums of floats or tuples, and
its errors have neither keys nor values.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
from slotwise.payload.payload import ANYTHING, JSON, PLAIN_TYPES, Misfit, Shape, member

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

    def check(value: object, writing: bool) -> object:
        if not isinstance(value, accepted) or (
            isinstance(value, bool) and kind is not bool
        ):
            raise wrong(kind, value)
        return value

    return Shape(check, frozenset(accepted), is_plain=True)


def text(kind: type) -> Shape:
    to_text, from_text = TEXTS[kind]

    def convert(value: object, writing: bool) -> object:
        if not isinstance(value, kind if writing else str) or (
            kind is date and isinstance(value, datetime)
        ):
            raise wrong(kind, value)
        try:
            return to_text(value) if writing else from_text(value)  # type: ignore[arg-type]
        except (ValueError, ArithmeticError):
            raise wrong(kind, value) from None

    return Shape(convert, frozenset({str}))


def among(kind: object, plain: Mapping[object, object]) -> Shape:
    """Return the converter for one of a few values, each with its plain form."""
    values = {(type(stored), stored): value for value, stored in plain.items()}

    def convert(value: object, writing: bool) -> object:
        try:
            return plain[value] if writing else values[type(value), value]
        except (KeyError, TypeError):
            raise wrong(kind, value) from None

    is_plain = all(
        type(value) is type(stored) and value == stored for value, stored in plain.items()
    )
    few = tuple(plain.values())
    return Shape(convert, frozenset(map(type, few)), is_plain=is_plain, few=few)


def list_of(
    kind: object,
    accepted: type | tuple[type, ...],
    make: Collect,
    items: Shape | Sequence[Shape],
) -> Shape:
    """Return the converter for a collection whose items have one type, or a type for each
    place.
    """

    def convert(value: object, writing: bool) -> object:
        given: Collection[object] = instance(
            value, accepted if writing else (list, tuple), kind
        )
        shapes = [items] * len(given) if isinstance(items, Shape) else items
        if len(given) != len(shapes):
            raise wrong(kind, value)
        pairs = enumerate(zip(shapes, given, strict=True))
        found = [
            member(shape.convert, each, place, writing) for place, (shape, each) in pairs
        ]
        return found if writing else make(found)

    return Shape(
        convert,
        frozenset({list}),
        is_plain=make is list and isinstance(items, Shape) and items.is_plain,
    )


def dict_of(kind: object, item: Shape) -> Shape:
    def convert(value: object, writing: bool) -> object:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise wrong(kind, value)
        return {
            key: member(item.convert, each, key, writing) for key, each in value.items()
        }

    return Shape(convert, frozenset({dict}), is_plain=item.is_plain)


def refuse_more(names: Iterable[str], known: Iterable[str], kind: object) -> None:
    """Raise Misfit for an unknown name: its value would silently be lost."""
    if more := sorted(set(map(str, names)).difference(known)):
        raise Misfit(
            f"would be lost; {called(kind)} has {', '.join(known) or 'none'}", f".{more[0]}"
        )


def foreign(
    kind: type,
    write: Callable[[object], object],
    read: Callable[[object], object],
    *,
    names: Callable[[type], Iterable[str]],
    stored: frozenset[type] = frozenset({dict}),
    tags: Mapping[str, frozenset[object]],
) -> Shape:
    """Return the converter for a model of a library. A written value is read again, as an instance
    may be invalid.
    """
    known = list(names(kind))

    def convert(value: object, writing: bool) -> object:
        if writing and type(instance(value, kind, kind)) is not kind:
            refuse_more(names(type(value)), known, kind)
        plain = write(value) if writing else value
        try:
            typed = read(plain)
        except ValueError as error:  # both libraries raise it, with several lines
            said = [
                line
                for line in str(error).splitlines()
                if not line.lstrip().startswith("For further information")
            ]
            raise Misfit(" ".join(" ".join(said).split())) from None
        return plain if writing else typed

    return Shape(convert, stored, tags=tags)


_WRAPPERS = (Annotated, Required, NotRequired)
_LISTS: dict[object, Collect] = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    Sequence: list,
}


@lru_cache(maxsize=512)
def shape_of(kind: Any) -> Shape:
    """Return the converter for a type. Raise InvalidPayload for one that no payload can have."""
    while (
        isinstance(kind, NewType)
        or get_origin(kind) in _WRAPPERS
        or hasattr(kind, "__value__")
    ):
        kind = (
            getattr(kind, "__supertype__", None)
            or getattr(kind, "__value__", None)
            or get_args(kind)[0]
        )
    if kind is Any or kind is object:
        return ANYTHING
    if kind is None or kind in (type(None), bool, int, float, str):
        return scalar(type(None) if kind is None else kind)
    if kind in TEXTS:
        return text(kind)
    if get_origin(kind) is not None or kind in _LISTS or kind in (dict, Mapping):
        return _compound(kind)
    found = _record(kind) if isinstance(kind, type) else None
    if found is None:
        raise InvalidPayload(
            f"{called(kind)} is not a type for a payload; use str, int, float, "
            "bool, None, list, dict, a dataclass, a "
            "TypedDict, an Enum, datetime, date, time, UUID, Decimal, or a model "
            "of pydantic or msgspec"
        )
    return found


def _compound(kind: object) -> Shape:
    origin = get_origin(kind) or kind
    arguments = get_args(kind)
    if origin in (Union, types.UnionType):
        return _union(kind, arguments)
    if origin is Literal:
        return among(kind, {value: value for value in arguments})
    if origin is tuple and arguments and arguments[1:] != (Ellipsis,):
        return list_of(kind, tuple, tuple, [shape_of(argument) for argument in arguments])
    if isinstance(origin, type) and origin in _LISTS:
        item = shape_of(arguments[0]) if arguments else ANYTHING
        return list_of(
            kind, (tuple, list) if origin is Sequence else origin, _LISTS[origin], item
        )
    if origin in (dict, Mapping) and (not arguments or arguments[0] is str):
        return dict_of(kind, shape_of(arguments[1]) if arguments else ANYTHING)
    raise InvalidPayload(
        f"{kind} is not a type for a payload; the keys of a dict are str, other "
        "generics cannot be read"
    )


def _union(kind: object, arguments: Sequence[object]) -> Shape:
    shapes = [shape_of(argument) for argument in arguments]
    for (one, shape), (other, second) in combinations(
        zip(arguments, shapes, strict=True), 2
    ):
        if shape.may_be_taken_for(second):
            raise InvalidPayload(
                f"{kind}: which of {called(one)} and {called(other)} a stored one "
                "was cannot be told; take one of "
                "them, a dataclass with a field for each, or a tagged union of pydantic or msgspec"
            )

    def convert(value: object, writing: bool) -> object:
        problems = []
        for shape in shapes:
            try:
                return shape.convert(value, writing)
            except Misfit as misfit:
                problems.append(misfit)
        deepest = max(problems, key=lambda misfit: len(misfit.path))
        # None fits only None: with one other type, the error of that type is more helpful
        raise (
            deepest
            if deepest.path or len(set(arguments) - {type(None)}) == 1
            else wrong(kind, value)
        )

    stored = frozenset[type]().union(*(shape.stored for shape in shapes))
    return Shape(convert, stored, is_plain=all(shape.is_plain for shape in shapes))


def _record(kind: type) -> Shape | None:
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
    literals = {
        spec.serialization_alias or spec.alias or name: spec.annotation
        for name, spec in fields
    }
    tags = {
        name: frozenset(get_args(hint))
        for name, hint in literals.items()
        if get_origin(hint) is Literal
    }
    stored = (
        PLAIN_TYPES - {type(None)}
        if issubclass(kind, library.RootModel)
        else frozenset({dict})
    )

    def dump(model: Any) -> object:
        """Dump a model as it reads itself: by aliases, without computed fields. Reading reports
        wrong values.
        """
        return model.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False)

    return foreign(
        kind,
        dump,
        kind.model_validate,
        names=lambda model: model.model_fields,  # type: ignore[attr-defined]
        stored=stored,
        tags=tags,
    )


def _msgspec(library: types.ModuleType, kind: Any) -> Shape:
    how = kind.__struct_config__
    return foreign(
        kind,
        library.to_builtins,
        lambda value: library.convert(value, kind),
        names=lambda model: model.__struct_fields__,  # type: ignore[attr-defined]
        stored=frozenset({list if how.array_like else dict}),
        tags={}
        if how.tag is None or how.array_like
        else {how.tag_field: frozenset({how.tag})},
    )


def _model_of(library: str, base: str, kind: type) -> types.ModuleType | None:
    module = sys.modules.get(library)
    return (
        module
        if module is not None and issubclass(kind, getattr(module, base, ()))
        else None
    )


def _hints(kind: type) -> dict[str, object]:
    try:
        return get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise InvalidPayload(
            f"{kind.__qualname__}: {error}; define it at the top level of a module"
        ) from None


def _data_class(kind: type) -> Shape:
    hints = _hints(kind)
    named = [spec.name for spec in dataclasses.fields(kind)]
    fields = {
        spec.name: shape_of(hints[spec.name]).convert
        for spec in dataclasses.fields(kind)
        if spec.init
    }

    def convert(value: object, writing: bool) -> object:
        if writing:
            if type(instance(value, kind, kind)) is not kind:
                refuse_more((spec.name for spec in dataclasses.fields(value)), named, kind)  # type: ignore[arg-type]
            return {
                name: member(field, getattr(value, name), name, True)
                for name, field in fields.items()
            }
        given: Mapping[str, object] = instance(value, Mapping, kind)
        found = {
            name: member(field, given[name], name, False)
            for name, field in fields.items()
            if name in given
        }
        try:
            return kind(**found)
        except TypeError as error:  # a field without a default is missing
            raise Misfit(str(error)) from None

    return Shape(convert, frozenset({dict}))


def _typed_dict(kind: Any) -> Shape:
    hints = _hints(kind)
    fields = {name: shape_of(hint).convert for name, hint in hints.items()}
    # string annotations show this only once resolved
    optional = {name for name, hint in hints.items() if get_origin(hint) is NotRequired}
    required = {name for name, hint in hints.items() if get_origin(hint) is Required}
    required |= kind.__required_keys__ - optional

    def convert(value: object, writing: bool) -> object:
        given: Mapping[str, object] = instance(value, Mapping, kind)
        if missing := required - given.keys():
            raise Misfit(f"{min(missing)} is missing")
        if writing:
            refuse_more(given, fields, kind)
        return {
            name: member(field, given[name], name, writing)
            for name, field in fields.items()
            if name in given
        }

    return Shape(convert, frozenset({dict}))


#: The largest result, in bytes; store a larger one elsewhere and return its key.
RESULT_LIMIT = 65_536


def encode_result(result: object) -> bytes:
    """Return a result as JSON: plain values, dataclasses, models. Raise InvalidPayload with the
    reason.
    """
    kind: type = type(result)
    try:
        shape = ANYTHING if isinstance(result, dict | list | tuple) else shape_of(kind)
        plain = shape.convert(result, True)
        body = JSON.encode(plain)
    except (Misfit, TypeError, ValueError, RecursionError) as error:
        raise InvalidPayload(
            f"the result is not kept: it cannot be written as JSON: {error}"
        ) from None
    except InvalidPayload:
        raise InvalidPayload(
            f"the result is not kept: {type(result).__name__} cannot be written as JSON"
        ) from None
    if len(body) > RESULT_LIMIT:
        raise InvalidPayload(
            f"the result is not kept: it has {len(body)} bytes, at most {RESULT_LIMIT} are allowed"
        )
    return body
