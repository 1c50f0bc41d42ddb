"""Converters for the types of payloads: typed value to plain value, which JSON can express, and
back.

Models of pydantic and msgspec come from an entry point of ``slotwise.payload_types``. msgspec's own
decoder cannot replace this file, because it loses data: it writes NaN as
null, rounds UTC offsets to minutes, ignores a dataclass's own ``__init__``, and cannot read fields
with ``init=False``. It also rejects tagged unions of TypedDicts and enums of floats or tuples, and
its errors have neither keys nor values.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from contextlib import contextmanager
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
from slotwise.model.plugged_in import all_plugged_in
from slotwise.payload.codecs import JSON
from slotwise.payload.comparison import refuse_changes, refuse_loss
from slotwise.payload.payload import one_line
from slotwise.payload.shape import (
    ANYTHING,
    Misfit,
    Shape,
    finite,
    member,
    refuse_non_json,
)

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


def instance(
    value: object, accepted: type[K] | tuple[type[K], ...], kind: object
) -> K:
    """Return the value if it is an instance of what is accepted for this type. Raise Misfit."""
    if not isinstance(value, accepted):
        raise wrong(kind, value)
    return value


def scalar(kind: type) -> Shape:
    accepted: tuple[type, ...] = (int, float) if kind is float else (kind,)

    def check(value: object, writing: bool) -> object:
        if isinstance(value, bool) and kind is not bool:
            raise wrong(kind, value)
        instance(value, accepted, kind)
        return finite(value) if writing and isinstance(value, float) else value

    return Shape(check, frozenset(accepted), is_plain=True)


def text(kind: type) -> Shape:
    to_text, from_text = TEXTS[kind]

    def convert(value: object, writing: bool) -> object:
        if kind is date and isinstance(value, datetime):
            raise wrong(kind, value)
        try:
            if not writing:
                return from_text(instance(value, str, kind))
            written = to_text(instance(value, kind, kind))
        except (ValueError, ArithmeticError):
            raise wrong(kind, value) from None
        refuse_changes(value, from_text(written))
        return written

    return Shape(convert, frozenset({str}))


def among(kind: object, values: Iterable[object]) -> Shape:
    """Return the converter for one of a few values: of a Literal, or the members of an Enum.

    Raise InvalidPayload if JSON cannot express one of them, or makes two of them the same.
    """
    stored: dict[object, object] = {}
    typed: dict[str, object] = {}
    for value in values:
        form = _json_form(kind, value)
        if repr(form) in typed:
            raise InvalidPayload(
                f"{called(kind)}: {value} and {typed[repr(form)]} are the same in JSON"
            )
        typed[repr(form)] = value
        stored[type(value), value] = form

    def convert(value: object, writing: bool) -> object:
        try:
            return stored[type(value), value] if writing else typed[repr(value)]
        except (KeyError, TypeError):
            raise wrong(kind, value) from None

    few = tuple(stored.values())
    is_plain = not any(isinstance(value, enum.Enum) for value in typed.values())
    return Shape(convert, frozenset(map(type, few)), is_plain=is_plain, few=few)


def _json_form(kind: object, value: object) -> object:
    """Return a value, or that of an enum's member, as JSON gives it back."""
    form = value.value if isinstance(value, enum.Enum) else value
    try:
        return JSON.decode(JSON.encode(form))
    except (TypeError, ValueError) as error:
        raise InvalidPayload(
            f"{called(kind)}: {value} cannot be written as JSON: {error}"
        ) from None


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
        found = [
            member(place, shape.convert, each, writing)
            for place, (shape, each) in enumerate(zip(shapes, given, strict=True))
        ]
        if not writing:
            return make(found)
        return sorted(found, key=repr) if isinstance(given, Set) else found

    is_plain = make is list and isinstance(items, Shape) and items.is_plain
    return Shape(convert, frozenset({list}), is_plain=is_plain)


def dict_of(kind: object, item: Shape) -> Shape:
    def convert(value: object, writing: bool) -> object:
        given: Mapping[object, object] = instance(value, Mapping, kind)
        if not all(isinstance(key, str) for key in given):
            raise wrong(kind, value)
        return {
            key: member(key, item.convert, each, writing)
            for key, each in given.items()
        }

    return Shape(convert, frozenset({dict}), is_plain=item.is_plain)


def model_shape(
    kind: type,
    write: Callable[[object], object],
    read: Callable[[object], object],
    read_back: Callable[[object], object],
    kinds: frozenset[type],
    tags: Mapping[str, frozenset[object]],
) -> Shape:
    """Return the converter for a model of a library: ``write`` makes plain values of it, ``read``
    makes it of what JSON gives, and ``read_back`` of what ``write`` gives, by way of JSON; both
    may raise ValueError.

    ``kinds`` are the types of its plain form. ``tags``: the keys whose values tell it apart from
    other models, each with these values.
    """

    def convert(value: object, writing: bool) -> object:
        if writing:
            written = write(instance(value, kind, kind))
            refuse_non_json(written, (list, tuple))
            refuse_changes(value, reading(read_back, written))
            return written
        return reading(read, value)

    def reading(how: Callable[[object], object], plain: object) -> object:
        try:
            return how(plain)
        except ValueError as error:  # of both libraries
            raise Misfit(one_line(error)) from None

    return Shape(convert, kinds, tags=tags)


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
    kind = _unwrapped(kind)
    if kind is Any or kind is object:
        return ANYTHING
    if kind in (None, type(None), bool, int, float, str):
        return scalar(type(None) if kind is None else kind)
    if kind in TEXTS:
        return text(kind)
    origin = get_origin(kind) or kind
    if origin in (Union, types.UnionType):
        return _union(kind, get_args(kind))
    if origin is Literal:
        return among(kind, get_args(kind))
    if origin in _LISTS:
        return _list(kind, origin, get_args(kind))
    if origin in (dict, Mapping):
        return _dict(kind, get_args(kind))
    return _record(kind)


def _unwrapped(kind: Any) -> Any:
    """Return the type that a NewType, an alias, or an annotation stands for."""
    while True:
        if isinstance(kind, NewType):
            kind = kind.__supertype__
        elif hasattr(kind, "__value__"):
            kind = kind.__value__
        elif get_origin(kind) in _WRAPPERS:
            kind = get_args(kind)[0]
        else:
            return kind


def _list(kind: object, origin: type, arguments: Sequence[object]) -> Shape:
    if origin is tuple and arguments and arguments[1:] != (Ellipsis,):
        return list_of(
            kind, tuple, tuple, [shape_of(argument) for argument in arguments]
        )
    item = shape_of(arguments[0]) if arguments else ANYTHING
    accepted = (tuple, list) if origin is Sequence else origin
    return list_of(kind, accepted, _LISTS[origin], item)


def _dict(kind: object, arguments: Sequence[object]) -> Shape:
    if arguments and arguments[0] is not str:
        raise InvalidPayload(
            f"{kind} is not a type for a payload; the keys of a dict are str"
        )
    return dict_of(kind, shape_of(arguments[1]) if arguments else ANYTHING)


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
        has_one = len(set(arguments) - {type(None)}) == 1
        raise deepest if deepest.path or has_one else wrong(kind, value)

    stored = frozenset[type]().union(*(shape.stored for shape in shapes))
    return Shape(convert, stored, is_plain=all(shape.is_plain for shape in shapes))


def _record(kind: Any) -> Shape:
    if is_typeddict(kind):
        return _typed_dict(kind)
    if isinstance(kind, type):
        if issubclass(kind, enum.Enum):
            return among(kind, kind)
        if dataclasses.is_dataclass(kind):
            return _data_class(kind)
        for shape_for in all_plugged_in("slotwise.payload_types"):
            shape: Shape | None = shape_for(kind)
            if shape is not None:
                return shape
    raise InvalidPayload(
        f"{called(kind)} is not a type for a payload; use str, int, float, bool, None, "
        "list, dict, a dataclass, a TypedDict, an Enum, datetime, date, time, UUID, Decimal, "
        "or a model of pydantic or msgspec"
    )


@contextmanager
def invalid_type(kind: type) -> Iterator[None]:
    """Raise InvalidPayload where reading a type's annotations raises NameError or TypeError."""
    try:
        yield
    except NameError as error:
        raise InvalidPayload(
            f"{called(kind)}: {one_line(error)}; define it at the top level of a module"
        ) from None
    except TypeError as error:
        raise InvalidPayload(f"{called(kind)}: {one_line(error)}") from None


def _data_class(kind: type) -> Shape:
    hints = _hints(kind)
    fields = {
        spec.name: shape_of(hints[spec.name])
        for spec in dataclasses.fields(kind)
        if spec.init
    }
    try:
        inspect.signature(kind).bind(**fields)
    except TypeError as error:
        raise InvalidPayload(
            f"{called(kind)} cannot be made of its fields: {error}; give each argument of its "
            "__init__ a field, or a default"
        ) from None
    is_simple = _is_simple(kind, fields)

    def convert(value: object, writing: bool) -> object:
        if writing:
            instance(value, kind, kind)
            given: Mapping[str, object] = {
                name: getattr(value, name) for name in fields
            }
            written = _converted(fields, given, True)
            if type(value) is not kind or not is_simple:
                refuse_changes(value, convert(written, False))
            return written
        found = _converted(fields, instance(value, Mapping, kind), False)
        try:
            return kind(**found)
        except (
            TypeError,
            ValueError,
        ) as error:  # a missing field, or its own validation
            raise Misfit(str(error)) from None

    return Shape(convert, frozenset({dict}))


def _hints(kind: type) -> dict[str, object]:
    with invalid_type(kind):
        return get_type_hints(kind, include_extras=True)


def _converted(
    fields: Mapping[str, Shape], given: Mapping[str, object], writing: bool
) -> dict[str, object]:
    """Convert those fields of a record that are given."""
    return {
        name: member(name, shape.convert, given[name], writing)
        for name, shape in fields.items()
        if name in given
    }


def _is_simple(kind: Any, fields: Collection[str]) -> bool:
    """Whether a dataclass surely equals one that is made of its fields again."""
    code = getattr(kind.__init__, "__code__", None)
    is_generated = code is not None and code.co_filename == "<string>"
    sets_freely = (
        kind.__dataclass_params__.frozen or kind.__setattr__ is object.__setattr__
    )
    return (
        is_generated
        and sets_freely
        and not hasattr(kind, "__post_init__")
        and len(dataclasses.fields(kind)) == len(fields)
    )


def _typed_dict(kind: Any) -> Shape:
    hints = _hints(kind)
    fields = {name: shape_of(hint) for name, hint in hints.items()}
    # string annotations show this only once resolved
    optional = {
        name for name, hint in hints.items() if get_origin(hint) is NotRequired
    }
    required = {name for name, hint in hints.items() if get_origin(hint) is Required}
    required |= kind.__required_keys__ - optional

    def convert(value: object, writing: bool) -> object:
        given: Mapping[str, object] = instance(value, Mapping, kind)
        if missing := required - given.keys():
            raise Misfit(f"{min(missing)} is missing")
        if writing:
            refuse_loss(given, fields)
        return _converted(fields, given, writing)

    return Shape(convert, frozenset({dict}))
