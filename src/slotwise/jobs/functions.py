"""Jobs and tasks made of functions by ``@job`` and ``@task``, and calls of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Concatenate,
    Generic,
    Never,
    ParamSpec,
    Protocol,
    TypeAlias,
    Unpack,
    cast,
    overload,
)

from typing_extensions import TypeVar

from slotwise.errors import InvalidJob
from slotwise.jobs.context import JobContext, T, TaskContext
from slotwise.jobs.job import (
    DistributedJob,
    JobPolicies,
    OneTimeTask,
    S_contra,
    T_contra,
    TaskPolicies,
)
from slotwise.jobs.signature import Arguments, Signature

if TYPE_CHECKING:
    from slotwise.schedules import Schedule

#: The type of ``ctx.state``.
S = TypeVar("S", default=object)
#: What a function takes, apart from the context, and what it returns.
P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
#: The context that it takes.
C_contra = TypeVar("C_contra", contravariant=True)

#: What a registry takes: an instance, or a class that takes no arguments, for this state.
JobOf: TypeAlias = DistributedJob[Never, S] | type[DistributedJob[Never, S]]
TaskFor: TypeAlias = OneTimeTask[Never, S] | type[OneTimeTask[Never, S]]

#: A job or a task, whatever its data and state.
AnyDeclaration: TypeAlias = DistributedJob[Never, Never] | OneTimeTask[Never, Never]


@dataclass(frozen=True, slots=True)
class Call:
    """A task with the data of one call, made by ``send_mail.call(to="ann", order=7)``.

    ``schedule``, ``schedule_many``, ``schedule_recurring`` and ``ctx.then`` take it in place of a
    task and its data; they validate the types of the data.
    """

    task: AnyDeclaration
    data: object


class OfFunction:
    """Made from a function by a decorator, whose keywords become attributes."""

    def __init__(
        self, function: Callable[..., object], declared: dict[str, object]
    ) -> None:
        signature = Signature(function)
        self._function = function
        self._signature = signature
        # hides the abstract method
        self.execute = function if signature.is_context_alone else signature.handler
        self.__dict__.update({"name": signature.name, **declared})
        self.__doc__ = function.__doc__

    @property
    def declaration(self) -> AnyDeclaration:
        """This task or job itself, for its subclasses are one of these."""
        return cast("AnyDeclaration", self)

    @property
    def signature(self) -> Signature:
        """What the function takes."""
        return self._signature

    def _data(self, given: tuple[object, ...], named: dict[str, object]) -> object:
        """Return the data of a call. Raise InvalidPayload for other arguments than the
        function's.
        """
        if not self._signature.is_context_alone:
            return self._signature.bind(*given, **named)
        if named or len(given) > 1:
            raise self._signature.takes_one_payload()
        return given[0] if given else None


class FunctionTask(OfFunction, OneTimeTask[T_contra, S_contra]):
    """A one-time task made from a function by ``@task``."""

    def execute(self, ctx: TaskContext[T_contra, S_contra], /) -> object:
        """Run the function; each instance has an attribute in its place."""
        raise NotImplementedError  # pragma: no cover


class FunctionJob(OfFunction, DistributedJob[T_contra, S_contra]):
    """A job made from a function by ``@job``."""

    def execute(self, ctx: JobContext[T_contra, S_contra], /) -> object:
        """Run the function; each instance has an attribute in its place."""
        raise NotImplementedError  # pragma: no cover


class Plain(OfFunction, Generic[P, R_co]):
    """Made from a function without a context; its data are the function's arguments."""

    def call(self, *given: P.args, **named: P.kwargs) -> Call:
        """Return the task, or the job, with these arguments. Raise InvalidPayload for wrong
        ones.
        """
        return Call(self.declaration, self._data(given, named))

    def __call__(self, *given: P.args, **named: P.kwargs) -> R_co:
        """Call the function here and now, as a test does."""
        return cast("R_co", self._function(*given, **named))


class WithContext(OfFunction, Generic[C_contra, P, R_co, T_contra]):
    """Made from a function that takes a context, alone or before arguments."""

    @overload
    def call(
        self: WithContext[C_contra, P, R_co, None], *given: P.args, **named: P.kwargs
    ) -> Call: ...
    @overload
    def call(self, data: T_contra, /) -> Call: ...
    def call(self, *given: object, **named: object) -> Call:
        """Return the task, or the job, with its data: the arguments after the context, or one
        typed payload. Raise InvalidPayload for wrong arguments.
        """
        return Call(self.declaration, self._data(given, named))

    def __call__(self, ctx: C_contra, /, *given: P.args, **named: P.kwargs) -> R_co:
        """Call the function here and now, as a test does."""
        return cast("R_co", self._function(ctx, *given, **named))


class PlainTask(Plain[P, R_co], FunctionTask[Arguments], Generic[P, R_co]):
    """A task made from a function without a context."""


class PlainJob(Plain[P, R_co], FunctionJob[None], Generic[P, R_co]):
    """A job made from a function without a context; its recurring instances have arguments."""


class ContextTask(
    WithContext[TaskContext[T_contra, S_contra], P, R_co, T_contra],
    FunctionTask[T_contra, S_contra],
    Generic[P, R_co, T_contra, S_contra],
):
    """A task made from a function that takes a TaskContext."""


class ContextJob(
    WithContext[JobContext[T_contra, S_contra], P, R_co, T_contra],
    FunctionJob[T_contra, S_contra],
    Generic[P, R_co, T_contra, S_contra],
):
    """A job made from a function that takes a JobContext."""


class MakeTask(Protocol):
    """The decorator that ``@task(…)`` returns."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[TaskContext[T, S], P], R_co], /
    ) -> ContextTask[P, R_co, T, S]: ...
    @overload
    def __call__(self, function: Callable[P, R_co], /) -> PlainTask[P, R_co]: ...


class MakeJob(Protocol):
    """The decorator that ``@job(…)`` returns."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext[T, S], P], R_co], /
    ) -> ContextJob[P, R_co, T, S]: ...
    @overload
    def __call__(self, function: Callable[P, R_co], /) -> PlainJob[P, R_co]: ...


def job(
    *,
    schedule: Schedule | str,
    name: str | None = None,
    **policies: Unpack[JobPolicies],
) -> MakeJob:
    """Make a job of a function: ``@job(name="tick", schedule=Every("1m"))``; further keywords are
    policies.

    ``schedule`` may be a string for ``parse_schedule``: ``"0 2 * * *"``. The default name is the
    function's. The function takes a JobContext, or arguments, or both; arguments have defaults,
    for only the job's recurring instances have data.
    """
    declared = {"schedule": schedule, **_named(name), **policies}
    return cast("MakeJob", _Maker(ContextJob, PlainJob, declared))


@overload
def task(
    function: Callable[Concatenate[TaskContext[T, S], P], R_co], /
) -> ContextTask[P, R_co, T, S]: ...
@overload
def task(function: Callable[P, R_co], /) -> PlainTask[P, R_co]: ...
@overload
def task(*, name: str | None = None, **policies: Unpack[TaskPolicies]) -> MakeTask: ...
def task(
    function: Callable[..., object] | None = None,
    /,
    *,
    name: str | None = None,
    **policies: Unpack[TaskPolicies],
) -> object:
    """Make a one-time task of a function: ``@task``, or ``@task(name="send-mail")``; further
    keywords are policies. The default name is the function's.

    The function's arguments are the task's data: ``def send_mail(to: str, order: int)`` is
    scheduled by ``client.schedule(send_mail.call(to="ann", order=7))``. If its first argument is a
    TaskContext, the function gets it. For one typed payload write
    ``def send_mail(ctx: TaskContext[Mail])``.
    """
    made = _Maker(ContextTask, PlainTask, {**_named(name), **policies})
    return made if function is None else made(function)


def _named(name: str | None) -> dict[str, object]:
    return {} if name is None else {"name": name}


@dataclass(frozen=True, slots=True)
class _Maker:
    """A decorator that makes one of two classes of a function."""

    with_context: type[OfFunction]
    plain: type[OfFunction]
    declared: dict[str, object]

    def __call__(self, function: Callable[..., object], /) -> OfFunction:
        if not callable(function) or isinstance(function, type):
            cure = "decorate a function, or subclass OneTimeTask or DistributedJob"
            if isinstance(function, str):
                cure = f"write name={function!r}"
            raise InvalidJob(f"{function!r:.80} is not a function; {cure}")
        takes_context = Signature(function).takes_context
        kind = self.with_context if takes_context else self.plain
        return kind(function, self.declared)
