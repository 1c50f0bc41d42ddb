"""Constructor arguments of discovered jobs, from dependency injection that an application has
already.

A *resolver* has one method, ``resolve``. The adapters here cover FastAPI's dependencies, Django's
settings, svcs and dishka. A mapping from types or argument names to values also works.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import (
    Annotated,
    Any,
    Final,
    Protocol,
    TypeAlias,
    get_args,
    get_origin,
    get_type_hints,
)

from slotwise import ConfigurationError, InvalidJob, SlotwiseError


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """An argument of a job's constructor; ``annotation`` includes ``Annotated`` metadata."""

    job: str
    name: str
    annotation: object
    default: object

    @property
    def type(self) -> Any:
        """The annotated type without ``Annotated``."""
        return (
            get_args(self.annotation)[0]
            if get_origin(self.annotation) is Annotated
            else self.annotation
        )

    @property
    def metadata(self) -> tuple[object, ...]:
        """What ``Annotated`` carries beside the type."""
        return (
            get_args(self.annotation)[1:]
            if get_origin(self.annotation) is Annotated
            else ()
        )

    def __str__(self) -> str:
        shown = (
            ""
            if self.annotation is inspect.Parameter.empty
            else f": {_spelled(self.type)}"
        )
        return f"{self.job}(… {self.name}{shown} …)"


class Resolver(Protocol):
    """Supplies constructor arguments. A resolver may have ``close()``, called by
    ``Discovered.close``.
    """

    def resolve(self, argument: Argument, /) -> object:
        """Return the value of the argument, or ``UNKNOWN`` to pass it on to the next resolver."""


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


#: What a resolver returns for an argument that it does not know.
UNKNOWN: Final = _Unknown()
#: A mapping from types and one from names differ in the type of their keys.
Resolvers: TypeAlias = Iterable[Resolver | Mapping[Any, object]]


def build(made: type, resolvers: Resolvers = ()) -> object:
    """Create an instance, with its arguments from the first resolver that knows each, else from
    their defaults.

    Raises InvalidJob for an argument that nothing supplies, and if the constructor raises.
    """
    known = tuple(_checked(resolver) for resolver in listed_resolvers(resolvers))
    values: dict[str, object] = {}
    positional: list[object] = []
    for argument, kind in _arguments(made):
        value = _resolved(argument, known, made)
        if value is UNKNOWN:
            continue
        if kind is inspect.Parameter.POSITIONAL_ONLY:
            positional.append(value)
        else:
            values[argument.name] = value
    try:
        return made(*positional, **values)
    except SlotwiseError:
        raise
    except Exception as error:
        raise InvalidJob(
            f"{place_of(made)}: its constructor raised {type(error).__name__}: "
            f"{' '.join(str(error).split())}; "
            "correct it, or its arguments"
        ) from error


def listed_resolvers(resolvers: object) -> list[Any]:
    """Return the resolvers as a list. Raises ConfigurationError for anything that is no list of
    them.
    """
    if isinstance(resolvers, Mapping | str | bytes) or not isinstance(
        resolvers, Iterable
    ):
        shown = (
            f"{resolvers!r:.60}" if isinstance(resolvers, Mapping | str | int) else "…"
        )
        raise ConfigurationError(
            f"resolvers is {resolvers!r:.80}; pass a list: resolvers=[{shown}]"
        )
    return list(resolvers)


def place_of(subject: object) -> str:
    """Return where a class or a function job is defined: ``shop.jobs:Report (…/shop/jobs.py, line
    12)``.
    """
    code: Any = (
        subject if isinstance(subject, type) else getattr(subject, "execute", subject)
    )
    name = f"{code.__module__}:{getattr(code, '__qualname__', code)}"
    try:
        return f"{name} ({inspect.getsourcefile(code)}, line {inspect.getsourcelines(code)[1]})"
    except (OSError, TypeError):
        return name


def close_all(resolvers: Iterable[object]) -> None:
    """Close the resolvers that can be closed, the last one first."""
    with ExitStack() as stack:
        for resolver in resolvers:
            if callable(close := getattr(resolver, "close", None)) and not isinstance(
                resolver, Mapping | type
            ):
                stack.callback(close)


def _resolved(
    argument: Argument, resolvers: tuple[Resolver, ...], made: type
) -> object:
    for resolver in resolvers:
        try:
            value = resolver.resolve(argument)
        except SlotwiseError:
            raise
        except Exception as error:
            raise InvalidJob(
                f"{place_of(made)}: the resolver {type(resolver).__name__} raised "
                f"{type(error).__name__}: "
                f"{' '.join(str(error).split())} for the argument {argument}; "
                "correct what supplies it"
            ) from error
        if value is not UNKNOWN:
            return value
    if argument.default is not inspect.Parameter.empty and not _is_dependency(
        argument.default
    ):
        return UNKNOWN
    tried = (
        ", ".join(type(resolver).__name__ for resolver in resolvers) or "none given"
    )
    raise InvalidJob(
        f"{place_of(made)}: no resolver supplies the argument {argument} "
        f"(resolvers: {tried}); add one, or a default"
    )


def _arguments(made: type) -> Iterator[tuple[Argument, object]]:
    if made.__init__ is object.__init__:  # type: ignore[misc]
        return
    try:
        hints = get_type_hints(made.__init__, include_extras=True)  # type: ignore[misc]
    except Exception as error:
        raise InvalidJob(
            f"{place_of(made)}: an annotation of its constructor cannot be "
            f"evaluated: {error}; import the type at run "
            "time"
        ) from error
    asked = inspect.signature(made.__init__).parameters  # type: ignore[misc]
    for name, found in list(asked.items())[1:]:
        if found.kind not in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        ):
            annotation = hints.get(name, inspect.Parameter.empty)
            yield (
                Argument(
                    job=made.__qualname__,
                    name=name,
                    annotation=annotation,
                    default=found.default,
                ),
                found.kind,
            )


def _checked(resolver: object) -> Resolver:
    if isinstance(resolver, Mapping):
        return _Values(resolver)
    if isinstance(resolver, type):
        name = resolver.__name__
        raise ConfigurationError(
            f"resolvers: {name} is a class; pass an instance: {name}()"
        )
    if not callable(getattr(resolver, "resolve", None)):
        raise ConfigurationError(
            f"resolvers: {resolver!r:.80} has no method resolve(argument); pass a "
            "mapping, or one of "
            "slotwise.contrib.injection"
        )
    return typing.cast(Resolver, resolver)


def _is_dependency(default: object) -> bool:
    """Whether this default is a marker of FastAPI and no value."""
    return type(default).__module__.partition(".")[0] == "fastapi"


def _spelled(annotation: object) -> str:
    return getattr(annotation, "__qualname__", None) or str(annotation)


class _Values:
    """Values by type or by argument name."""

    def __init__(self, values: Mapping[object, object]) -> None:
        self._values = values

    def resolve(self, argument: Argument) -> object:
        for key in (argument.name, argument.type):
            try:
                if key in self._values:
                    return self._values[key]
            except TypeError:  # an annotation that cannot be hashed
                continue
        return UNKNOWN


class FastAPIDependencies:
    """Resolve ``Annotated[Service, Depends(make_service)]`` and ``= Depends(make_service)``, also
    nested.

    A dependency is a plain callable or generator. Each is called once per resolver and shared,
    unless ``use_cache=False``; generators are ended by ``close``. ``overrides`` is for
    ``app.dependency_overrides``.

    Raises InvalidJob, naming it, for a dependency that is async, or that needs a request:
    ``Request``, ``Response``, ``BackgroundTasks``, or a path, query, header, cookie or body
    parameter.
    """

    def __init__(
        self, overrides: Mapping[Any, Callable[..., Any]] | None = None
    ) -> None:
        if overrides is not None and not isinstance(overrides, Mapping):
            raise ConfigurationError(
                f"FastAPIDependencies({overrides!r:.80}): pass app.dependency_overrides, or nothing"
            )
        self._overrides = {} if overrides is None else overrides
        self._stack = ExitStack()
        self._made: dict[object, object] = {}

    def resolve(self, argument: Argument) -> object:
        """Return what the argument's dependency returns."""
        marker = _depends(argument.default, argument.metadata)
        if marker is None:
            return UNKNOWN
        return self._call(
            _target(marker, argument.type), marker.use_cache, str(argument)
        )

    def close(self) -> None:
        """End the generators, the last one first."""
        self._made.clear()
        self._stack.close()

    def _call(self, target: Any, use_cache: bool, where: str) -> object:
        function = self._overrides.get(target, target)
        name = getattr(function, "__qualname__", repr(function))
        if use_cache and function in self._made:
            return self._made[function]
        call = (
            function
            if inspect.isroutine(function) or isinstance(function, type)
            else type(function).__call__
        )
        if inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call):
            raise InvalidJob(
                f"{where}: Depends({name}) is async; jobs are built without a "
                "loop: pass a plain function"
            )
        values = {
            parameter.name: self._parameter(parameter, annotation, name, where)
            for parameter, annotation in _parameters(function)
            if not _has_plain_default(parameter, annotation)
        }
        if inspect.isgeneratorfunction(call):
            made: object = self._stack.enter_context(
                contextmanager(function)(**values)
            )
        else:
            made = function(**values)
        if use_cache:
            self._made[function] = made
        return made

    def _parameter(
        self, parameter: inspect.Parameter, annotation: object, name: str, where: str
    ) -> object:
        metadata = (
            get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
        )
        marker = _depends(parameter.default, metadata)
        if marker is None:
            raise InvalidJob(
                f"{where}: Depends({name}) takes {parameter}, which only a request has; "
                "give the job a dependency that needs no request"
            )
        kind = get_args(annotation)[0] if metadata else annotation
        return self._call(_target(marker, kind), marker.use_cache, where)


def _depends(default: object, metadata: Iterable[Any]) -> Any:
    """Return FastAPI's ``Depends`` among these, or None. Recognized without an import of
    FastAPI.
    """
    for one in (default, *metadata):
        if type(one).__module__ == "fastapi.params" and hasattr(one, "dependency"):
            return one
    return None


def _target(marker: Any, annotation: object) -> Any:
    """Return what ``Depends(…)`` names; ``Depends()`` means the annotated class."""
    return annotation if marker.dependency is None else marker.dependency


def _parameters(function: Any) -> Iterator[tuple[inspect.Parameter, object]]:
    source: object = (
        vars(function).get("__init__", function)
        if isinstance(function, type)
        else function
    )
    source = source if inspect.isroutine(source) else type(source).__call__
    hints = get_type_hints(source, include_extras=True)
    try:
        found = inspect.signature(function).parameters.values()
    except ValueError:  # a class written in C takes nothing that we could supply
        return
    for parameter in found:
        if parameter.kind not in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        ):
            yield parameter, hints.get(parameter.name, parameter.annotation)


def _has_plain_default(parameter: inspect.Parameter, annotation: object) -> bool:
    kind, *markers = (
        get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    )
    of_request = getattr(kind, "__module__", "").partition(".")[0] in (
        "fastapi",
        "starlette",
    )
    return (
        parameter.default is not inspect.Parameter.empty
        and not of_request
        and not _is_dependency(parameter.default)
        and not any(map(_is_dependency, markers))
    )


class DjangoSettings:
    """Resolve an argument from Django's setting of the same name in capitals: ``bucket`` from
    ``settings.BUCKET``.

    ``prefix`` is put before it: ``DjangoSettings("REPORTS_")`` reads ``settings.REPORTS_BUCKET``.
    """

    def __init__(self, prefix: str = "") -> None:
        if not isinstance(prefix, str):
            raise ConfigurationError(
                f"DjangoSettings({prefix!r:.80}): the prefix must be a string, e.g. 'SHOP_'"
            )
        self._prefix = prefix

    def resolve(self, argument: Argument) -> object:
        """Return the setting."""
        from django.conf import settings  # late: an optional dependency

        return getattr(settings, self._prefix + argument.name.upper(), UNKNOWN)


class SvcsServices:
    """Resolve arguments by their type from a ``svcs.Container`` or a ``svcs.Registry``; ``close``
    closes it.

    Raises InvalidJob for a service whose factory is async.
    """

    def __init__(self, services: object) -> None:
        import svcs  # late: an optional dependency

        if not isinstance(services, svcs.Registry | svcs.Container):
            raise ConfigurationError(
                f"SvcsServices({services!r:.80}): pass a svcs.Registry or a svcs.Container"
            )
        self._missing = svcs.exceptions.ServiceNotFoundError
        self._container = (
            svcs.Container(services)
            if isinstance(services, svcs.Registry)
            else services
        )

    def resolve(self, argument: Argument) -> object:
        """Return the service of the argument's type."""
        if argument.type is inspect.Parameter.empty:
            return UNKNOWN
        try:
            return self._container.get(argument.type)
        except self._missing:
            return UNKNOWN
        except TypeError as error:
            if "async" not in str(error):
                raise
            raise InvalidJob(
                f"{argument}: its factory is async; register a plain factory for jobs"
            ) from error

    def close(self) -> None:
        """Close the container, and what its factories have opened."""
        self._container.close()


class DishkaContainer:
    """Resolve arguments by their type from a synchronous container of dishka; ``close`` closes it.

    Raises ConfigurationError for a container of ``make_async_container``.
    """

    def __init__(self, container: Any) -> None:
        from dishka.exceptions import NoFactoryError  # late: an optional dependency

        if not callable(getattr(container, "get", None)) or not callable(
            getattr(container, "close", None)
        ):
            raise ConfigurationError(
                f"DishkaContainer({container!r:.80}): pass the container of "
                "dishka.make_container(…)"
            )
        if inspect.iscoroutinefunction(container.get):
            raise ConfigurationError(
                f"resolvers: {type(container).__name__} is async; jobs are built "
                "without a loop: pass make_container(…)"
            )
        self._container = container
        self._missing = NoFactoryError

    def resolve(self, argument: Argument) -> object:
        """Return the dependency of the argument's type."""
        if argument.type is inspect.Parameter.empty:
            return UNKNOWN
        try:
            return self._container.get(argument.type)
        except self._missing as error:
            if error.requested.type_hint is not argument.type:
                raise InvalidJob(
                    f"{argument}: dishka cannot make it: {' '.join(str(error).split())[:300]}"
                ) from error
            if (scope := self._scope_of(argument.type)) is not None:
                raise InvalidJob(
                    f"{argument}: dishka provides it in {scope}, and jobs are "
                    "built once; provide it in "
                    "Scope.APP, or pass an entered container: "
                    "DishkaContainer(stack.enter_context(container()))"
                ) from error
            return UNKNOWN

    def _scope_of(self, wanted: object) -> str | None:
        """Return the narrower scope in which the container provides this type; None if in none.
        Creates nothing.
        """
        for scope in type(self._container.scope):
            try:
                child = self._container(scope=scope)
            except Exception:  # this container has no child of this scope
                continue
            with child:
                if any(
                    key.type_hint is wanted
                    for key in getattr(child.registry, "factories", ())
                ):
                    return str(scope)
        return None

    def close(self) -> None:
        """Close the container, and what its providers have opened."""
        self._container.close()
