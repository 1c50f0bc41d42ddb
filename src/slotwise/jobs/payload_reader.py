"""The payload that a task declares, read once, at registration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Never, TypeVar, cast, get_args, get_origin, get_type_hints

from slotwise.errors import InvalidJob, InvalidPayload, located
from slotwise.jobs.context import JobContext, TaskContext
from slotwise.jobs.functions import AnyDeclaration, OfFunction
from slotwise.jobs.job import DistributedJob, OneTimeTask, declared
from slotwise.model.records import is_whole
from slotwise.payload.codecs import CODECS, JSON, Codec
from slotwise.payload.converters import called, shape_of
from slotwise.payload.payload import UNTYPED, Payload, Upgrade
from slotwise.payload.shape import Shape
from slotwise.schedules import Disabled, Schedule

_VERSION = "payload_version"
_BASES = (OneTimeTask, DistributedJob)


def payload_of(
    source: OneTimeTask[Never, Never] | type[OneTimeTask[Never, Never]], where: str
) -> Payload:
    """Return the payload that a task declares. Raise InvalidJob or InvalidPayload with the
    cure.
    """
    version, upgrades = _versions(source, where)
    kind, shape = _type_of(source, where)
    return Payload(
        kind=kind,
        shape=shape,
        codec=_codec(source, where),
        version=version,
        upgrades=upgrades,
    )


def _type_of(
    source: AnyDeclaration | type[OneTimeTask[Never, Never]], where: str
) -> tuple[object, Shape]:
    """Return the type of the data, and its converter. Raise InvalidJob or InvalidPayload."""
    kind = declared(source, "payload")
    if isinstance(source, OfFunction) and not source.signature.is_context_alone:
        return dict, _shape_of_arguments(source, kind, where)
    if kind is None:
        kind = _of_class(source if isinstance(source, type) else type(source), where)
    if kind is None or isinstance(kind, TypeVar):
        kind = _of_handler(source.execute, where)
    if kind is None or isinstance(kind, TypeVar):
        kind = Any
    try:
        with located(where, InvalidPayload):
            return kind, shape_of(kind)
    except RecursionError:
        raise InvalidPayload(
            f"{where}: {called(kind)} contains itself, which only models of "
            "pydantic and msgspec may; take one of these, or dict[str, Any]"
        ) from None


def _shape_of_arguments(source: OfFunction, kind: object, where: str) -> Shape:
    if kind is not None:
        raise InvalidJob(
            f"{where}.payload: the data are the arguments of {where}; remove payload"
        )
    if _of_handler(source.execute, where) not in (None, type(None)):
        raise InvalidJob(
            f"{where}: ctx.data has a type, and there are arguments; write TaskContext or "
            "JobContext alone, or TaskContext[None, …] with a type of ctx.state"
        )
    return source.signature.shape


def payload_of_job(
    source: DistributedJob[Never, Never], schedule: Schedule, where: str
) -> Payload:
    """Return the payload of a job's recurring instances; its version only tells releases apart.

    Raise InvalidJob if the job's own slots, which have no data, could not run.
    """
    version = _version(source, where)
    kind, shape = _type_of(source, where)
    if not isinstance(schedule, Disabled) and not shape.reads(None):
        raise InvalidJob(
            f"{where}: the slots of {schedule} have no data, and {_needs(source, kind)}; "
            "or, for recurring instances only, make it a @task"
        )
    if kind is Any and version == 1:
        return UNTYPED
    upgrades = dict.fromkeys(range(1, version), _as_it_is)
    return Payload(kind=kind, shape=shape, version=version, upgrades=upgrades)


def _needs(source: object, kind: object) -> str:
    if isinstance(source, OfFunction) and not source.signature.is_context_alone:
        return f"{source.signature} needs some; give each argument a default"
    return f"ctx.data is {called(kind)}; write {called(kind)} | None"


def _as_it_is(data: object) -> object:
    return data


def _version(source: object, where: str) -> int:
    version: int = declared(source, _VERSION, 1)
    if not is_whole(version, 1):
        raise InvalidJob(
            f"{where}.{_VERSION} is {version!r}; expected a whole number, 1 or more"
        )
    return version


def _versions(source: object, where: str) -> tuple[int, Mapping[int, Upgrade]]:
    version = _version(source, where)
    upgrades = declared(source, "upgrades", {})
    if not isinstance(upgrades, Mapping) or not all(
        callable(upgrade) for upgrade in upgrades.values()
    ):
        raise InvalidJob(
            f"{where}.upgrades is {upgrades!r:.80}; expected {{1: function from 1 to 2, …}}"
        )
    if set(upgrades) != set(range(1, version)):
        wanted = ", ".join(map(str, range(1, version))) or "none"
        raise InvalidJob(
            f"{where}.upgrades has {sorted(upgrades)}; for payload_version {version} give: {wanted}"
        )
    return version, upgrades


def _codec(source: object, where: str) -> Codec:
    name = declared(source, "codec", JSON.name)
    found = CODECS.get(name) if isinstance(name, str) else None
    if found is None:
        known = ", ".join(sorted(CODECS))
        raise InvalidJob(
            f"{where}.codec is {name!r}; registered are {known}; call register_codec first"
        )
    return found


def _of_class(kind: type, where: str) -> object:
    """Return the type argument of ``OneTimeTask[…]``, through any number of bases; None without
    one.
    """
    for base in kind.__dict__.get("__orig_bases__", ()):
        origin = get_origin(base)
        arguments = get_args(base)
        if origin in _BASES:
            return _resolved(arguments[0], kind, where)
        if isinstance(origin, type) and issubclass(origin, _BASES):
            parameters: tuple[object, ...] = getattr(origin, "__parameters__")  # noqa: B009
            given = dict(zip(parameters, arguments, strict=True))
            return _resolved(_filled(_of_class(origin, where), given), kind, where)
    found = [
        _of_class(base, where) for base in kind.__bases__ if issubclass(base, _BASES)
    ]
    return next((one for one in found if one is not None), None)


def _filled(found: object, given: Mapping[object, object]) -> object:
    if isinstance(found, TypeVar):
        return given.get(found, found)
    names = getattr(found, "__parameters__", ())
    if not names:
        return found
    generic = cast("Mapping[object, object]", found)
    return generic[tuple(given.get(name, name) for name in names)]


def _resolved(argument: object, kind: type, where: str) -> object:
    """Return the type argument; names in quotes are looked up in the module of the class."""
    holder = type(
        "", (), {"__annotations__": {"data": argument}, "__module__": kind.__module__}
    )
    try:
        return get_type_hints(holder, include_extras=True)["data"]
    except NameError as error:
        raise InvalidJob(
            f"{where}: {error}; name the type itself: payload = …"
        ) from None


def _of_handler(handler: Callable[..., object], where: str) -> object:
    """Return the type argument of the handler's ``TaskContext[…]``; None without one."""
    try:
        hints = get_type_hints(handler)
    except (
        Exception
    ) as error:  # an annotation may be anything, and is only read for this
        if "Context[" in str(getattr(handler, "__annotations__", "")):
            raise InvalidJob(
                f"{where}: {error}; name the type of the data: payload=…"
            ) from None
        return None
    hints.pop("return", None)
    context = next(iter(hints.values()), None)
    return (
        next(iter(get_args(context)), None)
        if get_origin(context) in (TaskContext, JobContext)
        else None
    )
