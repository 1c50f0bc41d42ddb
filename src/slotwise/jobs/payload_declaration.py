"""Reads what a task declares about its data: in brackets, in annotations, or in words of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ForwardRef, TypeVar, get_args, get_origin, get_type_hints

from slotwise.errors import InvalidJob, InvalidPayload
from slotwise.jobs.context import TaskContext
from slotwise.jobs.job import OneTimeTask, declared
from slotwise.payload.codecs import JSON, Codec, codec_named, codec_names
from slotwise.payload.converters import called
from slotwise.payload.payload import Payload, Upgrade
from slotwise.payload.types import shape_of

#: What a task may declare about its data.
PAYLOAD_WORDS = ("payload", "payload_version", "upgrades", "codec")


def payload_of(source: OneTimeTask[Any] | type[OneTimeTask[Any]], where: str) -> Payload:
    """What a task declares about its data. Raises InvalidJob or InvalidPayload with the cure."""
    kind = declared(source, "payload")
    if kind is None:
        kind = _of_class(source if isinstance(source, type) else type(source), where)
    if kind is None or isinstance(kind, TypeVar):
        kind = _of_handler(source.execute, where)
    if kind is None or isinstance(kind, TypeVar):
        kind = Any
    version, upgrades = _versions(source, where)
    try:
        shape = shape_of(kind)
    except InvalidPayload as error:
        raise InvalidPayload(f"{where}: {error}") from None
    except RecursionError:
        raise InvalidPayload(
            f"{where}: {called(kind)} contains itself, which only models of pydantic and msgspec may; take one of "
            "these, or dict[str, Any]"
        ) from None
    return Payload(kind=kind, shape=shape, codec=_codec(source, where), version=version, upgrades=upgrades)


def _versions(source: object, where: str) -> tuple[int, Mapping[int, Upgrade]]:
    version, upgrades = declared(source, "payload_version", 1), declared(source, "upgrades", {})
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise InvalidJob(f"{where}.payload_version is {version!r}; expected a whole number, 1 or more")
    if not isinstance(upgrades, Mapping) or not all(callable(upgrade) for upgrade in upgrades.values()):
        raise InvalidJob(f"{where}.upgrades is {upgrades!r:.80}; expected {{1: function from 1 to 2, …}}")
    if set(upgrades) != set(range(1, version)):
        wanted = ", ".join(map(str, range(1, version))) or "none"
        raise InvalidJob(f"{where}.upgrades has {sorted(upgrades)}; for payload_version {version} give: {wanted}")
    return version, upgrades


def _codec(source: object, where: str) -> Codec:
    name = declared(source, "codec", JSON.name)
    found = codec_named(name) if isinstance(name, str) else None
    if found is None:
        known = ", ".join(codec_names())
        raise InvalidJob(f"{where}.codec is {name!r}; registered are {known}; call register_codec first")
    return found


def _of_class(kind: Any, where: str) -> Any:
    """What stands in the brackets of ``OneTimeTask[…]``, through any number of bases; None if nothing."""
    for base in kind.__dict__.get("__orig_bases__", ()):
        origin, arguments = get_origin(base), get_args(base)
        if origin is OneTimeTask:
            return _resolved(arguments[0], kind, where)
        if isinstance(origin, type) and issubclass(origin, OneTimeTask):
            given = dict(zip(origin.__parameters__, arguments, strict=True))  # type: ignore[attr-defined]
            return _resolved(_filled(_of_class(origin, where), given), kind, where)
    found = [_of_class(base, where) for base in kind.__bases__ if issubclass(base, OneTimeTask)]
    return next((one for one in found if one is not None), None)


def _filled(found: Any, given: Mapping[Any, Any]) -> Any:
    """``found`` with its type variables replaced."""
    if isinstance(found, TypeVar):
        return given.get(found, found)
    names = getattr(found, "__parameters__", ())
    return found[tuple(given.get(name, name) for name in names)] if names else found


def _resolved(argument: Any, kind: Any, where: str) -> Any:
    if not isinstance(argument, ForwardRef):
        return argument
    module = inspect.getmodule(kind)
    try:
        return eval(argument.__forward_code__, vars(module) if module else {})
    except NameError as error:
        raise InvalidJob(f"{where}: {error}; name the type itself: payload = …") from None


def _of_handler(handler: Callable[..., object], where: str) -> Any:
    """What stands in the brackets of the handler's ``TaskContext[…]``; None if nothing."""
    try:
        hints = get_type_hints(handler)
    except Exception as error:  # an annotation may be anything, and is only read for this
        if "TaskContext[" in str(getattr(handler, "__annotations__", "")):
            raise InvalidJob(f"{where}: {error}; name the type of the data: payload=…") from None
        return None
    hints.pop("return", None)
    context = next(iter(hints.values()), None)
    return get_args(context)[0] if get_origin(context) is TaskContext else None
