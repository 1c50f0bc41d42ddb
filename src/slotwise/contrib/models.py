"""Payloads that are models of pydantic or msgspec.

This file never imports these libraries: their models exist only where they are loaded already.
"""

from __future__ import annotations

import sys
import types
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final, Literal, Union, get_args, get_origin
from uuid import UUID

from slotwise import InvalidPayload
from slotwise.spi import JSON, Shape, invalid_type, model_shape

#: Types that are stored as strings.
_AS_TEXT: Final = frozenset({datetime, date, time, UUID, Decimal})
#: What a model is stored as whose root may be of any type.
_ANY_ROOT: Final = frozenset({bool, int, float, str, list, dict})


def shape_of_model(kind: type) -> Shape | None:
    """Return the converter of a model; None for any other type. Raise InvalidPayload."""
    if (library := _library_of("pydantic", "BaseModel", kind)) is not None:
        return _pydantic(library, kind)
    if (library := _library_of("msgspec", "Struct", kind)) is not None:
        return _msgspec(library, kind)
    return None


def _library_of(library: str, base: str, kind: type) -> types.ModuleType | None:
    """Return the library if the type is one of its models, and so it is imported already."""
    module = sys.modules.get(library)
    is_model = module is not None and issubclass(kind, getattr(module, base, ()))
    return module if is_model else None


def _pydantic(library: types.ModuleType, kind: Any) -> Shape:
    with invalid_type(kind):
        kind.model_rebuild()  # names that were not defined yet
    _refuse_lossy(kind, kind, set())
    tags = {
        spec.serialization_alias or spec.alias or name: frozenset(
            get_args(spec.annotation)
        )
        for name, spec in kind.model_fields.items()
        if get_origin(spec.annotation) is Literal
    }

    def dump(value: object) -> object:
        """Dump a model as it reads itself: by aliases, without computed fields."""
        return kind.model_dump(
            value, mode="json", by_alias=True, round_trip=True, warnings=False
        )

    def load(value: object) -> object:
        return kind.model_validate_json(JSON.encode(value))

    is_root = issubclass(kind, library.RootModel)
    stored = _ANY_ROOT if is_root else frozenset({dict})
    return model_shape(kind, dump, load, load, stored, tags)


def _refuse_lossy(kind: type, annotation: Any, seen: set[object]) -> None:
    """Raise InvalidPayload for what could not return, anywhere in a pydantic model: a union of str
    and a type that is stored as a string, whose values it would read as str; and aliases.
    """
    arguments = get_args(annotation)
    if get_origin(annotation) in (Union, types.UnionType) and str in arguments:
        for lost in _AS_TEXT & set(arguments):
            raise InvalidPayload(
                f"{kind.__qualname__}: a {lost.__qualname__} in {annotation} would come back as "
                "a str; take one of them"
            )
    if hasattr(annotation, "model_fields") and annotation not in seen:
        seen.add(annotation)
        _refuse_aliases(annotation)
        arguments = tuple(spec.annotation for spec in annotation.model_fields.values())
    for each in arguments:
        _refuse_lossy(kind, each, seen)


def _refuse_aliases(kind: Any) -> None:
    """Raise InvalidPayload for a field that is written under a name by which it is not read."""
    decorators = kind.__pydantic_decorators__
    if decorators.model_serializers or decorators.model_validators:
        return  # these may rename fields
    config = kind.model_config
    for name, spec in kind.model_fields.items():
        alias = spec.validation_alias
        read = _names_of(alias) if config.get("validate_by_alias", True) else set()
        if (
            alias is None
            or config.get("populate_by_name")
            or config.get("validate_by_name")
        ):
            read.add(name)
        written = spec.serialization_alias or name
        if written not in read and not spec.exclude:
            names = ", ".join(sorted(read)) or "a path of several names"
            raise InvalidPayload(
                f"{kind.__qualname__}: the field {name} is written as {written} and read as "
                f"{names}; give it an alias that is both"
            )


def _names_of(alias: Any) -> set[str]:
    """Return the names by which pydantic reads a field with this alias; a path has none."""
    names: set[str] = set()
    if alias is None:
        return names
    for choice in getattr(alias, "choices", [alias]):
        path = getattr(choice, "path", [choice])  # a string is one name
        if len(path) == 1:
            names.add(path[0])
    return names


def _msgspec(library: types.ModuleType, kind: Any) -> Shape:
    with invalid_type(kind):
        library.json.Decoder(kind)
    how = kind.__struct_config__
    is_tagged = how.tag is not None and not how.array_like

    def load(value: object) -> object:
        return library.convert(value, kind, str_keys=True)

    return model_shape(
        kind,
        lambda value: library.to_builtins(value, str_keys=True),
        load,
        lambda written: load(JSON.decode(JSON.encode(written))),
        frozenset({list if how.array_like else dict}),
        {how.tag_field: frozenset({how.tag})} if is_tagged else {},
    )
