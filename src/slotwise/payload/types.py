"""Types that payloads may have: each as a pair of functions, typed value to plain value and back.

Plain values are what JSON can say. pydantic and msgspec are never imported from here: a model of theirs can only
exist where they are loaded already.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import (
    Annotated,
    Any,
    Literal,
    NewType,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from slotwise.errors import InvalidPayload
from slotwise.payload.converters import (
    ANYTHING,
    PLAIN_TYPES,
    TEXTS,
    Misfit,
    Shape,
    among,
    called,
    dict_of,
    fixed,
    foreign,
    list_of,
    member,
    refuse_more,
    scalar,
    text,
    wrong,
)

_WRAPPERS = (Annotated, Required, NotRequired)
_LISTS: dict[Any, Callable[[Any], Any]] = {list: list, set: set, frozenset: frozenset, Sequence: list}


@lru_cache(maxsize=512)
def shape_of(kind: Any) -> Shape:
    """The shape of a type. Raises InvalidPayload for one that no payload can have."""
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
            f"{called(kind)} is no type for a payload; take str, int, float, bool, None, list, dict, a dataclass, a "
            "TypedDict, an Enum, datetime, date, time, UUID, Decimal, or a model of pydantic or msgspec"
        )
    return found


def _compound(kind: Any) -> Shape:
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, types.UnionType):
        return _union(kind, arguments)
    if origin is Literal:
        return among(kind, {value: value for value in arguments})
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis) and arguments:
        return fixed(kind, [shape_of(argument) for argument in arguments])
    if origin is tuple or origin in _LISTS:
        item = shape_of(arguments[0]) if arguments else ANYTHING
        return list_of(kind, (tuple, list) if origin is Sequence else origin, _LISTS.get(origin, tuple), item)
    if origin in (dict, Mapping) and (not arguments or arguments[0] is str):
        return dict_of(kind, shape_of(arguments[1]) if arguments else ANYTHING)
    raise InvalidPayload(f"{kind} is no type for a payload; the keys of a dict are str, other generics cannot be read")


def _union(kind: Any, arguments: Sequence[Any]) -> Shape:
    shapes = [shape_of(argument) for argument in arguments]
    for (one, shape), (other, second) in combinations(zip(arguments, shapes, strict=True), 2):
        if shape.may_be_taken_for(second):
            raise InvalidPayload(
                f"{kind}: which of {called(one)} and {called(other)} a stored one was cannot be told; take one of "
                "them, a dataclass with a field for each, or a tagged union of pydantic or msgspec"
            )

    def first(direction: Sequence[Callable[[Any], Any]], value: Any) -> Any:
        problems = []
        for function in direction:
            try:
                return function(value)
            except Misfit as misfit:
                problems.append(misfit)
        deepest = max(problems, key=lambda misfit: len(misfit.path))
        # None fits nothing but None: where there is one other type, what that says tells more
        raise deepest if deepest.path or len(set(arguments) - {type(None)}) == 1 else wrong(kind, value)

    writers, readers = [shape.write for shape in shapes], [shape.read for shape in shapes]
    return Shape(
        lambda value: first(writers, value),
        lambda value: first(readers, value),
        frozenset().union(*(shape.stored for shape in shapes)),
        is_plain=all(shape.is_plain for shape in shapes),
    )


def _record(kind: type) -> Shape | None:
    """A class with named parts, of whichever library."""
    if issubclass(kind, enum.Enum):
        return among(kind, {member: member.value for member in kind})
    if (library := _model_of("pydantic", "BaseModel", kind)) is not None:
        return _pydantic(library, kind)
    if (library := _model_of("msgspec", "Struct", kind)) is not None:
        return _msgspec(library, kind)
    if is_typeddict(kind):
        return _typed_dict(kind)
    return _data_class(kind) if dataclasses.is_dataclass(kind) else None


def _pydantic(library: Any, kind: Any) -> Shape:
    fields = kind.model_fields.items()
    literals = {spec.serialization_alias or spec.alias or name: spec.annotation for name, spec in fields}
    stored = PLAIN_TYPES - {type(None)} if issubclass(kind, library.RootModel) else frozenset({dict})
    return foreign(
        kind, _dumped, kind.model_validate, names=lambda model: model.model_fields,  # type: ignore[attr-defined]
        stored=stored, tags=_tags(literals),
    )  # fmt: skip


def _msgspec(library: Any, kind: Any) -> Shape:
    how = kind.__struct_config__
    return foreign(
        kind, library.to_builtins, lambda value: library.convert(value, kind),
        names=lambda model: model.__struct_fields__,  # type: ignore[attr-defined]
        stored=frozenset({list if how.array_like else dict}),
        tags={} if how.tag is None or how.array_like else {how.tag_field: frozenset({how.tag})},
    )  # fmt: skip


def _tags(hints: Mapping[str, Any]) -> dict[str, frozenset[Any]]:
    return {name: frozenset(get_args(hint)) for name, hint in hints.items() if get_origin(hint) is Literal}


def _dumped(model: Any) -> Any:
    """As the model itself reads it: by its aliases, without what it computes. Wrong values are told by reading."""
    return model.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False)


def _model_of(library: str, base: str, kind: type) -> Any:
    """The library, if it is loaded and ``kind`` is a model of its."""
    module = sys.modules.get(library)
    return module if module is not None and issubclass(kind, getattr(module, base, ())) else None


def _hints(kind: type) -> dict[str, Any]:
    try:
        return get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise InvalidPayload(f"{kind.__qualname__}: {error}; define it at the top level of a module") from None


def _data_class(kind: type) -> Shape:
    hints = _hints(kind)
    named = [spec.name for spec in dataclasses.fields(kind)]
    fields = {spec.name: shape_of(hints[spec.name]) for spec in dataclasses.fields(kind) if spec.init}

    def write(value: Any) -> dict[str, Any]:
        if not isinstance(value, kind):
            raise wrong(kind, value)
        if type(value) is not kind:
            refuse_more((spec.name for spec in dataclasses.fields(value)), named, kind)  # type: ignore[arg-type]
        return {name: member(shape.write, getattr(value, name), name) for name, shape in fields.items()}

    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise wrong(kind, value)
        try:
            return kind(**{name: member(fields[name].read, value[name], name) for name in fields if name in value})
        except TypeError as error:  # a field without a default is missing
            raise Misfit(str(error)) from None

    return Shape(write, read, frozenset({dict}))


def _typed_dict(kind: Any) -> Shape:
    hints = _hints(kind)
    shapes = {name: shape_of(hint) for name, hint in hints.items()}
    # annotations that were texts say so only once they are resolved
    optional = {name for name, hint in hints.items() if get_origin(hint) is NotRequired}
    required = {name for name, hint in hints.items() if get_origin(hint) is Required}
    required |= kind.__required_keys__ - optional

    def convert(value: Any, direction: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise wrong(kind, value)
        if missing := required - value.keys():
            raise Misfit(f"{min(missing)} is missing")
        if direction == "write":
            refuse_more(value, shapes, kind)
        return {
            name: member(getattr(shape, direction), value[name], name)
            for name, shape in shapes.items()
            if name in value
        }

    return Shape(lambda value: convert(value, "write"), lambda value: convert(value, "read"), frozenset({dict}))
