"""What users write: jobs and tasks; and what their handlers are given."""

from __future__ import annotations

import inspect
import logging
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, overload

from typing_extensions import TypeVar

from slotwise.errors import ConfigurationError, InvalidJob, JobCancelled
from slotwise.payload import UNTYPED
from slotwise.policies import CatchUp, OnLost, Overlap, Retry
from slotwise.sequel import BEGINNING, Sequel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from datetime import datetime, timedelta

    from slotwise.execution import Claim
    from slotwise.schedules import Schedule
    from slotwise.sequel import Follow, IfExists

_BOTH = (
    "ctx.then and ctx.arrive come with the settlement, complete_in before it; beside complete_in write: "
    "ctx.client.schedule(…, connection=…)"
)
_TOO_LATE = "the attempt has ended: what it leaves behind is written already"

#: The type of a task's data.
T = TypeVar("T", default=Any)


class DistributedJob(ABC):
    """A recurring job: subclass it, say ``name``, ``schedule`` and ``execute``.

    Attributes may be class attributes, set on ``self`` in ``__init__`` (which need not call
    ``super().__init__``), properties or zero-argument methods; each is read once, at registration.
    ``execute`` is ``def`` or ``async def``, may raise anything (the attempt failed), and may run for ever.

    >>> from slotwise import Cron, DistributedJob, JobContext
    >>> class NightlyReport(DistributedJob):
    ...     name = "nightly-report"
    ...     schedule = Cron("0 2 * * *", tz="Europe/Vienna")
    ...     def execute(self, ctx: JobContext) -> None:
    ...         print("report for", ctx.slot)
    """

    #: Cluster-wide unique, at most 100 characters.
    name: str
    #: When it runs; see the schedules.
    schedule: Schedule
    #: What happens to slots that were missed while nobody held the job.
    catch_up: CatchUp
    #: What happens to slots that came due while the previous one was held.
    overlap: Overlap
    #: ``"rerun"``: a slot whose worker died runs again; ``"give_up"``: at most one start per slot, ever.
    on_lost: OnLost
    #: After so many lost attempts the slot ends as dead and the schedule goes on.
    max_lost: int
    #: Further attempts of a failed slot; None: the next slot is the next try.
    retry: Retry | None
    #: Two starts are at least this far apart: moves due times, never slots. None: no matter.
    min_interval: timedelta | str | None
    #: Each run is due up to this much after its slot: how much follows from the name. None: at its slot.
    spread: timedelta | str | None
    #: Which due rows go first where workers are short: 90 is high, 50 usual, 10 low.
    priority: int
    #: ``"process"``: each attempt runs in a process of its own, which can be killed. None: within the worker.
    isolation: str | None
    #: Tags that a worker must carry to run it.
    runs_on: Sequence[str] | AbstractSet[str]
    #: How late after its slot the first attempt may start; later, it is skipped (late). None: any time.
    start_within: timedelta | str | None
    #: How long an attempt may run (``timedelta`` or ``"10m"``) before it is told to stop, and fails; None: for ever.
    timeout: timedelta | str | None

    @abstractmethod
    def execute(self, ctx: JobContext, /) -> object:
        """Run one slot."""


class OneTimeTask(ABC, Generic[T]):
    """A one-time task with a payload: subclass it, say ``name`` and ``execute``; schedule it through a client.

    ``OneTimeTask[Mail]`` takes a Mail: a dataclass, a TypedDict, a model of pydantic or msgspec, or any type made
    of those and of what JSON can say. Both sides are held to it: what is scheduled, and what ``ctx.data`` gives.
    Without a type the data is whatever JSON can say. Without a ``retry`` of its own a task is tried ten times with
    exponential pauses; then its row stays, as ``dead``, with the reason. Data that cannot be read is dead at once.

    >>> from dataclasses import dataclass
    >>> from slotwise import OneTimeTask, TaskContext
    >>> @dataclass
    ... class Mail:
    ...     to: str
    >>> class SendMail(OneTimeTask[Mail]):
    ...     name = "send-mail"
    ...     def execute(self, ctx: TaskContext[Mail]) -> None:
    ...         print("mail to", ctx.data.to)
    """

    name: str
    on_lost: OnLost
    max_lost: int
    retry: Retry | None
    timeout: timedelta | str | None
    priority: int
    isolation: str | None
    runs_on: Sequence[str] | AbstractSet[str]
    #: The type of the data, where the brackets after OneTimeTask cannot say it.
    payload: Any
    #: How many of these may run at a time in the whole cluster; None: as many as there is capacity for.
    max_running: int | None
    #: How many of these may start in which time, in the whole cluster: ``"100/m"``; None: as many as are due.
    max_starts: str | None
    #: Which ends the ledger keeps: ``"none"``, ``"failures"`` (also cancelled and lost ones) or ``"all"``.
    history: str
    #: How long what the handler returns is kept for ``client.result`` (``timedelta`` or ``"7d"``); None: not at all.
    keep_result: timedelta | str | None
    #: Rises with each change of the data that older workers, or rows that wait, cannot take as it is.
    payload_version: int
    #: For each older version a function from its plain data (dicts, lists, …) to that of the next.
    upgrades: Mapping[int, Callable[[Any], Any]]
    #: How the data becomes bytes: ``json``, or what ``register_codec`` was told.
    codec: str

    @abstractmethod
    def execute(self, ctx: TaskContext[T], /) -> object:
        """Run the task."""


class FunctionJob(DistributedJob):
    """A job made from a function by ``@job``; calling it calls the function."""

    def __init__(self, function: Callable[[JobContext], object], declared: dict[str, Any]) -> None:
        self.execute = function  # type: ignore[method-assign]
        self.__dict__.update(declared)
        self.__doc__ = function.__doc__

    def execute(self, ctx: JobContext, /) -> object:  # pragma: no cover - hidden by the instance's attribute
        raise NotImplementedError

    def __call__(self, ctx: JobContext) -> object:
        return self.execute(ctx)


class FunctionTask(OneTimeTask[T]):
    """A one-time task made from a function by ``@task``; calling it calls the function."""

    def __init__(self, function: Callable[[TaskContext[T]], object], declared: dict[str, Any]) -> None:
        self.execute = function  # type: ignore[method-assign]
        self.__dict__.update(declared)
        self.__doc__ = function.__doc__

    def execute(self, ctx: TaskContext[T], /) -> object:  # pragma: no cover - hidden by the instance's attribute
        raise NotImplementedError

    def __call__(self, ctx: TaskContext[T]) -> object:
        return self.execute(ctx)


class MakeTask(Protocol):
    """What ``@task(…)`` puts around a function: its data has the type that the context's annotation says."""

    @overload
    def __call__(self, function: Callable[[JobContext], object], /) -> FunctionTask[Any]: ...
    @overload
    def __call__(self, function: Callable[[TaskContext[T]], object], /) -> FunctionTask[T]: ...


def job(
    *, name: str, schedule: Schedule | str, **policies: Any
) -> Callable[[Callable[[JobContext], object]], FunctionJob]:
    """Make a job of a function: ``@job(name="tick", schedule=Every("1m"))``; further keywords are policies.

    ``schedule`` may be a text, as ``parse_schedule`` takes it: ``"0 2 * * *"``.
    """

    def make(function: Callable[[JobContext], object]) -> FunctionJob:
        return FunctionJob(function, {"name": name, "schedule": schedule, **policies})

    return make


def task(*, name: str, **policies: Any) -> MakeTask:
    """Make a one-time task of a function: ``@task(name="send-mail")``; further keywords are policies.

    The type of its data stands in the annotation: ``def send_mail(ctx: TaskContext[Mail])``.
    """

    def make(function: Callable[[Any], object]) -> FunctionTask[Any]:
        return FunctionTask(function, {"name": name, **policies})

    return make


class Signal:
    """Tells a running handler to stop, and why: lost, operator, timeout or shutdown. The first reason stays."""

    __slots__ = ("_callbacks", "_event", "_lock", "reason")

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self.reason: str | None = None

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self, reason: str) -> bool:
        """Give the signal; True for whoever was first."""
        with self._lock:
            if self.reason is not None:
                return False
            self.reason = reason
            callbacks = tuple(self._callbacks)
        self._event.set()
        for callback in callbacks:
            callback()
        return True

    def on_set(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the signal is given, at once if it already was."""
        with self._lock:
            if self.reason is None:
                self._callbacks.append(callback)
                return
        callback()

    def wait(self, seconds: float | None) -> bool:
        return self._event.wait(seconds)


class Hold(Protocol):
    """What a context sees of the claim it runs under."""

    @property
    def claim(self) -> Claim: ...
    @property
    def signal(self) -> Signal: ...
    @property
    def stop_reason(self) -> str | None: ...
    @property
    def lost(self) -> bool: ...
    def lease_left(self) -> timedelta: ...
    @property
    def ended(self) -> bool: ...

    promised: bool
    #: What was called with an async connection and is not awaited yet.
    unawaited: str | None
    sequel: Sequel | None


class Fence(Protocol):
    """What proves, in a user's own transaction, that a claim still holds."""

    def guard(self, claim: Claim, connection: Any) -> Awaitable[None] | None: ...
    def complete_in(self, claim: Claim, connection: Any) -> Awaitable[None] | None: ...


class JobContext:
    """What a handler knows about its slot and its claim."""

    __slots__ = ("_data", "_fence", "_hold", "_log", "_read", "_stopping", "client", "schedule", "state")
    _MISSING: ClassVar[object] = object()

    def __init__(
        self,
        hold: Hold,
        *,
        fence: Fence,
        schedule: Schedule | None = None,
        read: Callable[[bytes | None], Any] = UNTYPED.decode,
        client: Any = None,
        state: Any = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._hold = hold
        self._fence = fence
        self._stopping = stopping
        self._read = read
        self._data: Any = self._MISSING
        self.schedule = schedule
        #: A client bound to the registry: schedules further tasks.
        self.client = client
        #: What the registry's lifespan gave, else None.
        self.state = state
        self._log: logging.LoggerAdapter[logging.Logger] | None = None

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines carry job, slot, attempt and token."""
        if self._log is None:
            claim = self._hold.claim
            facts = {"job": self.name, "slot": claim.slot, "attempt": self.attempt, "token": claim.token}
            self._log = logging.LoggerAdapter(logging.getLogger("slotwise.job"), facts)
        return self._log

    @property
    def name(self) -> str:
        """The job's name."""
        return self._hold.claim.row.task_name

    @property
    def instance(self) -> str:
        """The instance: ``recurring`` for a job's own row, the id for a one-time task."""
        return self._hold.claim.row.task_instance

    @property
    def slot(self) -> datetime:
        """The slot, an aware UTC instant; the same in every attempt.

        A one-time task has none: there it is None, which the annotation hides for the sake of every job.
        """
        return self._hold.claim.slot  # type: ignore[return-value]

    @property
    def interval_start(self) -> datetime | None:
        """The slot before this one: the start of what this run covers; None where there is none."""
        slot = self._hold.claim.slot
        if slot is None or self.schedule is None or self.schedule.from_end:
            return None
        return self.schedule.latest_before(slot)

    @property
    def interval_end(self) -> datetime | None:
        """The end of what this run covers: the slot itself."""
        return self._hold.claim.slot

    @property
    def attempt(self) -> int:
        """The number of this start of the slot's handler, from 1."""
        return self._hold.claim.row.attempt

    @property
    def is_catch_up(self) -> bool:
        """Whether this slot was missed and runs late."""
        return self._hold.claim.row.origin == "catch_up"

    @property
    def collapsed(self) -> int:
        """How many older missed slots this run stands for."""
        return self._hold.claim.row.collapsed

    @property
    def token(self) -> int:
        """The fencing token: rises with every claim of this row; hand it to whatever can refuse an older one."""
        return self._hold.claim.token

    @property
    def idempotency_key(self) -> str:
        """The same text in every attempt of this slot, and in no other slot or task."""
        row = self._hold.claim.row
        if row.ledger_key is None:
            return f"{row.task_name}/{row.task_instance}/{row.first_version}"
        name, instance, slot = row.ledger_key
        return f"{name}/{instance}/{slot.isoformat()}"

    @property
    def worker(self) -> str:
        """The worker that runs this attempt: host, pid and boot id."""
        return self._hold.claim.holder

    @property
    def data(self) -> Any:
        """The payload, decoded once; None without one."""
        if self._data is self._MISSING:
            self._data = self._read(self._hold.claim.row.task_data)
        return self._data

    @property
    def lost(self) -> bool:
        """True once the claim is known, or must be believed, to be somebody else's."""
        return self._hold.lost

    @property
    def cancelled(self) -> bool:
        """True once the handler should stop; ``cancel_reason`` says why."""
        return self._hold.stop_reason is not None

    @property
    def cancel_reason(self) -> str | None:
        """``lost``, ``operator``, ``overlap`` (a newer slot), ``timeout``, ``shutdown``; None: nothing asks it to."""
        return self._hold.stop_reason

    @property
    def stopping(self) -> bool:
        """True once the worker drains: a handler that runs for ever should come to an end."""
        return self._stopping()

    @property
    def lease_left(self) -> timedelta:
        """How long the claim is certainly still ours without another heartbeat, by a clock that never steps."""
        return self._hold.lease_left()

    def wait(self, seconds: float) -> bool:
        """Sleep, but no longer than until the handler is asked to stop; True if it was."""
        return self._hold.signal.wait(seconds)

    def check(self) -> None:
        """Raise JobCancelled if the handler should stop."""
        if self.cancelled:
            raise JobCancelled(f"{self.name} {self.slot or self.instance} was asked to stop: {self.cancel_reason}")

    def guard(self, connection: Any) -> Any:
        """Prove, in the transaction of ``connection``, that this claim still holds, and keep it so until its end.

        ``connection`` is in a transaction on the database that holds the tables: SQLAlchemy's Connection or Session,
        or psycopg's Connection; with an AsyncConnection or AsyncSession of either: ``await ctx.guard(connection)``.
        Raises ClaimLost for a stale claim, so that the transaction rolls back; heartbeats go on meanwhile.
        """
        return self._settled("guard", self._fence.guard(self._hold.claim, connection))

    def complete_in(self, connection: Any) -> Any:
        """Guard, and write the slot's success in the same transaction: work and settlement commit together or not.

        If that transaction rolls back, the attempt failed, whatever the handler returns. Connections as for
        ``guard``: with an async one, ``await ctx.complete_in(connection)``. Raises ClaimLost for a stale claim.
        """
        if self._hold.sequel is not None:
            raise ConfigurationError(_BOTH)
        return self._settled("complete_in", self._fence.complete_in(self._hold.claim, connection), promise=True)

    def _settled(self, word: str, pending: Awaitable[None] | None, *, promise: bool = False) -> Any:
        """None; or what is to be awaited: an attempt that forgets to fails, for nothing was proved in it."""
        if pending is None:
            self._hold.promised = self._hold.promised or promise
            return None
        self._hold.unawaited = word

        async def wait() -> None:
            self._hold.unawaited = None
            await pending
            self._hold.promised = self._hold.promised or promise

        return wait()

    def then(
        self,
        task: Any,
        data: Any = None,
        *,
        id: str | None = None,
        at: datetime | None = None,
        in_: timedelta | str | None = None,
        priority: int | None = None,
        if_exists: IfExists = "keep",
        waits_for: int = 0,
    ) -> str:
        """Let a task follow if, and only if, this attempt succeeds: both are written in one transaction. Its id.

        As ``client.schedule``; ``in_`` counts from the end of this attempt. Nobody can be told by then that an id is
        taken, so what ``if_exists`` says becomes of it, "keep" unless given. With the id of this very task
        (``id=ctx.instance``) it takes this one's place. ``waits_for``: it is blocked until so many others have called
        ``arrive``. Raises what ``client.schedule`` raises, and ConfigurationError together with ``complete_in``:
        there pass ``connection`` to ``client.schedule`` instead.
        """
        follow: Follow = self.client.follow(
            task, data, id=id, at=at, in_=in_, priority=priority, if_exists=if_exists, waits_for=waits_for
        )
        self._sequel().follows.append(follow)
        return follow.wanted.instance

    def arrive(self, task: Any, id: str) -> None:
        """Tell a task that waits for others, once this attempt has succeeded, that one more has arrived."""
        self._sequel().arrivals.append(self.client.key(task, id))

    def _sequel(self) -> Sequel:
        if self._hold.promised or self._hold.ended:
            raise ConfigurationError(_BOTH if self._hold.promised else _TOO_LATE)
        with BEGINNING:
            self._hold.sequel = self._hold.sequel or Sequel()
            return self._hold.sequel


class TaskContext(JobContext, Generic[T]):
    """What the handler of a one-time task knows: as JobContext, with data of the task's own type."""

    __slots__ = ()

    @property
    def data(self) -> T:
        """The payload, of the type that the task declares."""
        found: T = super().data
        return found


def declared(source: object, attribute: str, default: Any = None) -> Any:
    """What a job says under ``attribute``: a value, a property or a zero-argument method; ``default`` if nothing.

    Raises InvalidJob if it says something that then lacks an attribute itself.
    """
    try:
        value = getattr(source, attribute)
    except AttributeError as error:
        if inspect.getattr_static(source, attribute, None) is not None:
            raise InvalidJob(f"{type(source).__name__}.{attribute} cannot be read: {error}") from error
        return default
    return value() if inspect.ismethod(value) and _takes_nothing(value) else value


def _takes_nothing(method: Callable[..., Any]) -> bool:
    try:
        inspect.signature(method).bind()
    except TypeError:
        return False
    return True
