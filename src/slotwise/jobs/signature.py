"""The signature of a plain function under ``@task`` or ``@job``: which arguments a row stores, and
how the function is called with them.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias, cast, get_origin, get_type_hints

from slotwise.errors import InvalidJob, InvalidPayload, located
from slotwise.jobs.context import Context
from slotwise.payload.converters import shape_of
from slotwise.payload.shape import Misfit, Shape, member

#: Names under which an argument without a class is the context.
_CONTEXTS = frozenset({"ctx", "_ctx", "context", "_context", "_"})
_VARIADIC = {
    inspect.Parameter.VAR_POSITIONAL: "one argument with a list: items: list[str]",
    inspect.Parameter.VAR_KEYWORD: "one argument with a dict: fields: dict[str, str]",
}

#: Arguments by name.
Arguments: TypeAlias = Mapping[str, object]


class _Written(str):
    """An annotation that is a string, as it stands in the source."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class HasData(Protocol):
    """The part of a context that a plain function is called with."""

    @property
    def data(self) -> object: ...


class Signature:
    """The parameters of a function, apart from the context that it may take as the first one."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        self.name: str = getattr(function, "__name__", type(function).__name__)
        found = list(_own_parameters(function))
        #: Whether the first parameter is the context.
        self.takes_context = bool(found) and _is_context(found[0], function)
        #: The parameters whose arguments a row stores.
        self.parameters = found[1:] if self.takes_context else found

    def __str__(self) -> str:
        shown = [
            parameter.replace(annotation=_Written(parameter.annotation))
            if isinstance(parameter.annotation, str)
            else parameter
            for parameter in self.parameters
        ]
        return str(inspect.Signature(shown))

    @property
    def is_context_alone(self) -> bool:
        """Whether the data, if any, come by the context, and not as arguments."""
        return self.takes_context and not self.parameters

    def check(self) -> None:
        """Raise InvalidJob for a signature whose arguments cannot be stored by their names."""
        names = [parameter.name for parameter in self.parameters]
        if inspect.isfunction(self._function) and names[:1] in (["self"], ["cls"]):
            raise InvalidJob(
                f"{self._function.__qualname__} is a method, and no worker has its "
                f"{names[0]}; decorate a function, or subclass OneTimeTask or DistributedJob"
            )
        for parameter in self.parameters:
            if parameter.kind in _VARIADIC:
                raise InvalidJob(
                    f"{self.name}: {parameter} has arguments without a name, and a row stores "
                    f"arguments by name; write {_VARIADIC[parameter.kind]}"
                )
        if self._is_ambiguous:
            raise InvalidJob(
                f"{self.name}({names[0]}): an argument or the context? Write its type, such "
                f"as {names[0]}: str or {names[0]}: TaskContext"
            )
        if inspect.isgeneratorfunction(self._function) or inspect.isasyncgenfunction(
            self._function
        ):
            raise InvalidJob(
                f"{self.name} contains yield, so that calling it would run nothing; "
                "remove the yield"
            )

    @property
    def _is_ambiguous(self) -> bool:
        """Whether the only parameter has neither a type, nor a default, nor a context's name."""
        if self.takes_context or len(self.parameters) != 1:
            return False
        only = self.parameters[0]
        return only.annotation is only.empty and only.default is only.empty

    def takes_one_payload(self) -> InvalidPayload:
        """Return the error for a call with arguments of a function with one payload."""
        return InvalidPayload(
            f"{self.name}.call(): {self.name} takes one payload, ctx.data; pass nothing else"
        )

    def bind(self, *given: object, **named: object) -> dict[str, object]:
        """Return the given arguments by name; defaults are left out. Raise InvalidPayload."""
        try:
            return inspect.Signature(self.parameters).bind(*given, **named).arguments
        except TypeError as error:
            raise InvalidPayload(
                f"{self.name}.call(): {error}; it takes {self}"
            ) from None

    @functools.cached_property
    def shape(self) -> Shape:
        """The converter of the arguments to an object of JSON and back.

        Raises InvalidJob or InvalidPayload with the cure.
        """
        self.check()
        shapes = {one.name: self._shape_of(one) for one in self.parameters}
        return Shape(partial(self._convert, shapes), frozenset({dict, type(None)}))

    def _shape_of(self, parameter: inspect.Parameter) -> Shape:
        with located(f"{self.name}({parameter.name})", InvalidPayload):
            return shape_of(_type_of(parameter, self._function))

    def _convert(
        self, shapes: Mapping[str, Shape], value: object, writing: bool
    ) -> object:
        given = self._arguments_of(value)
        self._refuse_others(given, writing)
        found = {
            name: member(name, shapes[name].convert, one, writing)
            for name, one in given.items()
        }
        return found or None if writing else found

    def _refuse_others(self, given: Arguments, writing: bool) -> None:
        """Raise Misfit for arguments that the function lacks, and for missing ones."""
        names = [parameter.name for parameter in self.parameters]
        if unknown := sorted(given.keys() - set(names)):
            raise Misfit(self._no_argument(unknown[0], writing))
        for parameter in self.parameters:
            if parameter.default is parameter.empty and parameter.name not in given:
                raise Misfit(f"{parameter.name} is missing; {self.name} takes {self}")

    def _arguments_of(self, value: object) -> Arguments:
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise Misfit(
                f"expected arguments by name, got {value!r:.80}; write {self.name}.call(…)"
            )
        return value

    def _no_argument(self, name: str, writing: bool) -> str:
        cure = f"it takes {self}"
        if not writing:
            cure += (
                "; for rows of another release keep the parameter, with a default, or raise "
                "payload_version and drop the argument in upgrades"
            )
        return f"{self.name} has no argument {name!r}; {cure}"

    @functools.cached_property
    def handler(self) -> Callable[[HasData], object]:
        """The function as a handler, which takes the context."""
        call = self._call

        async def call_async(ctx: HasData) -> object:
            return await cast("Awaitable[object]", call(ctx))

        def call_plainly(ctx: HasData) -> object:
            return call(ctx)

        is_async = inspect.iscoroutinefunction(self._function)
        found = call_async if is_async else call_plainly
        return functools.update_wrapper(found, self._function)

    def _call(self, ctx: HasData) -> object:
        named = dict(self._arguments_of(ctx.data))
        first: list[object] = [ctx] if self.takes_context else []
        for parameter in self.parameters:
            is_unnamed = parameter.kind is parameter.POSITIONAL_ONLY
            if is_unnamed and parameter.name in named:
                first.append(named.pop(parameter.name))
        return self._function(*first, **named)


def _own_parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    """Return the parameters; of what is wrapped, if the wrapper takes any arguments.

    A function in C takes the context: its signature says little about types, if it has one.
    """
    try:
        if inspect.isbuiltin(function):
            raise ValueError
        own = inspect.signature(function, follow_wrapped=False).parameters.values()
        if any(parameter.kind in _VARIADIC for parameter in own):
            own = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return [inspect.Parameter("_", inspect.Parameter.POSITIONAL_ONLY)]
    return list(own)


def _is_context(first: inspect.Parameter, function: Callable[..., object]) -> bool:
    if first.kind in _VARIADIC or first.kind is first.KEYWORD_ONLY:
        return False
    try:
        kind = _type_of(first, function)
    except InvalidPayload:  # a name that only type checkers see
        return bool(re.search(r"\b(Job|Task)?Context\b", str(first.annotation)))
    kind = get_origin(kind) or kind
    if isinstance(kind, type) and kind not in (object, Any):
        return issubclass(kind, Context)
    is_unnamed = first.kind is first.POSITIONAL_ONLY
    return first.name in _CONTEXTS or (is_unnamed and first.annotation is first.empty)


def _type_of(parameter: inspect.Parameter, function: Callable[..., object]) -> object:
    """Return the type of a parameter, object without one. Raise InvalidPayload."""
    if parameter.annotation is parameter.empty:
        return object
    inner = inspect.unwrap(getattr(function, "func", function))
    annotations = {parameter.name: parameter.annotation}
    holder = type(
        "", (), {"__annotations__": annotations, "__module__": inner.__module__}
    )
    try:
        return get_type_hints(holder, include_extras=True)[parameter.name]
    except (NameError, TypeError) as error:
        raise InvalidPayload(
            f"{error}; import the type of {parameter.name} at the top level of the module, "
            "not only for type checkers"
        ) from None
