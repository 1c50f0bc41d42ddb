"""The base classes of jobs and tasks, and the policies that they declare."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    TypeAlias,
    TypedDict,
)

from typing_extensions import TypeVar

from slotwise.errors import InvalidJob
from slotwise.jobs.context import JobContext, TaskContext
from slotwise.jobs.policies import CatchUp, OnLost, Overlap, Retry
from slotwise.payload.payload import Upgrade

if TYPE_CHECKING:
    from slotwise.schedules import Schedule


#: The type of the data. A task that takes any data also takes none, and not the reverse.
T_contra = TypeVar("T_contra", default=None, contravariant=True)
#: The type of ``ctx.state``. A handler that does not use it takes any.
S_contra = TypeVar("S_contra", default=object, contravariant=True)

#: Which ends of tasks the ledger keeps; failures are also cancelled and lost ones.
Records: TypeAlias = Literal["none", "failures", "all"]
LogLevel: TypeAlias = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


class Declaration(ABC):
    """What jobs and tasks may declare. Each attribute is read once, at registration."""

    #: Cluster-wide unique, at most 100 characters.
    name: str
    #: ``"rerun"``: a slot or task whose worker died runs again; ``"give_up"``: at most one start,
    #: ever.
    on_lost: OnLost
    #: After this many lost attempts it ends as dead; the schedule of a job continues.
    max_lost: int
    #: Further attempts after a failure; None: none, so that the next slot of a job is the next
    #: try.
    retry: Retry | None
    #: How long an attempt may run (``timedelta`` or ``"10m"``) before it is asked to stop, and
    #: fails; None: for ever.
    timeout: timedelta | str | None
    #: How long an attempt may run before the log, health and explain say so, and it runs on; None:
    #: for ever.
    warn_after: timedelta | str | None
    #: Which due rows start first when workers are busy: 90 is high, 50 the default, 10 low.
    priority: int
    #: ``"process"``: each attempt runs in a process of its own, which can be killed. None: within
    #: the worker.
    isolation: Literal["process"] | None
    #: Tags that a worker must carry to run it.
    runs_on: Sequence[str] | AbstractSet[str]
    #: Lines of the worker about it below this level are not logged, ``"WARNING"`` for instance;
    #: what the handler logs is not affected. None: as the logger says.
    log_level: LogLevel | None
    #: Former names: rows that wait under them run as well.
    aliases: Sequence[str] | AbstractSet[str]
    #: How long the ledger keeps its ended slots, where the cluster's settings would keep them
    #: longer; None: as they say.
    retention: timedelta | str | None
    #: The same for slots that succeeded, minutes for instance: the hourly counts keep their number.
    success_retention: timedelta | str | None


class DistributedJob(Declaration, Generic[T_contra, S_contra]):
    """A recurring job: subclass it and declare ``name``, ``schedule`` and ``execute``.

    Its recurring instances may have data: ``DistributedJob[Customer | None]``, read by
    ``ctx.data`` of a ``JobContext[Customer | None]``. Its own slots have none.

    Attributes may be class attributes, set on ``self`` in ``__init__`` (which need not call
    ``super().__init__``), properties or zero-argument methods; each is read once, at registration.
    ``execute`` is ``def`` or ``async def`` and may run for ever. If it raises, the attempt has
    failed.

    >>> from slotwise import Cron, DistributedJob, JobContext
    >>> class NightlyReport(DistributedJob):
    ...     name = "nightly-report"
    ...     schedule = Cron("0 2 * * *", tz="Europe/Vienna")
    ...     def execute(self, ctx: JobContext) -> None:
    ...         print("report for", ctx.slot)
    """

    #: When it runs: a schedule, or a string for ``parse_schedule`` such as ``"0 2 * * *"``.
    schedule: Schedule | str
    #: What happens to slots that were missed while no worker held the job.
    catch_up: CatchUp
    #: What happens to slots that came due while the previous one was held.
    overlap: Overlap
    #: The minimum time between two starts: moves due times, never slots. None: no minimum.
    min_interval: timedelta | str | None
    #: Each run is due up to this much after its slot; the name determines how much. None: at its
    #: slot.
    spread: timedelta | str | None
    #: How late after its slot the first attempt may start; later, it is skipped (late). None: any
    #: time.
    start_within: timedelta | str | None
    #: By when a run should have ended: ``"06:00"`` in the zone of the job, or a duration after the
    #: slot. A slot that will probably miss it is reported; nothing else changes. None: any time.
    finish_by: timedelta | str | None
    #: From which share of runs that would miss it on a slot is reported.
    finish_risk: float
    #: Raise it, and workers of older releases leave the job's slots to newer ones.
    payload_version: int
    #: Whether it has a row in each shard, where an application has several databases.
    each_shard: bool

    @abstractmethod
    def execute(self, ctx: JobContext[T_contra, S_contra], /) -> object:
        """Run one slot."""


class OneTimeTask(Declaration, Generic[T_contra, S_contra]):
    """A one-time task with a payload: subclass it, declare ``name`` and ``execute``, and schedule
    it through a client.

    ``OneTimeTask[Mail]`` takes a Mail: a dataclass, a TypedDict, a model of pydantic or msgspec,
    or any type made of those and of JSON values. The type is validated when the task is scheduled
    and when ``ctx.data`` is read. ``OneTimeTask[Any]`` takes any JSON value. For a type checker
    ``OneTimeTask`` alone takes no data; at run time it is the same as ``OneTimeTask[Any]``. By
    default a task has ten attempts with exponential waits; then its row stays as ``dead``, with
    the reason. A task whose data cannot be read is dead at once.

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

    #: The type of the data, if it is not given as ``OneTimeTask[…]``.
    payload: object
    #: How many of these may run at a time in the whole cluster; None: as many as there is capacity
    #: for.
    concurrency: int | None
    #: How many of these may start in a period, in the whole cluster: ``"100/m"``; None: as many as
    #: are due.
    rate_limit: str | None
    #: Which ends the ledger keeps: ``"none"``, ``"failures"`` (also cancelled and lost ones) or
    #: ``"all"``.
    record: Records
    #: How long the handler's result is kept for ``client.result`` (``timedelta`` or ``"7d"``);
    #: None: not at all.
    result_retention: timedelta | str | None
    #: The version of the data's format: raise it with each change that older workers or waiting
    #: rows cannot read.
    payload_version: int
    #: For each older version, a function that converts its plain data (dicts, lists, …) to the
    #: next version.
    upgrades: Mapping[int, Upgrade]
    #: How the data is encoded: ``json``, or the name of a codec from ``register_codec``.
    codec: str

    @abstractmethod
    def execute(self, ctx: TaskContext[T_contra, S_contra], /) -> object:
        """Run the task."""


class Policies(TypedDict, total=False):
    """The keywords that jobs and tasks have in common, as the attributes of DistributedJob and
    OneTimeTask.
    """

    on_lost: OnLost
    max_lost: int
    retry: Retry | None
    timeout: timedelta | str | None
    warn_after: timedelta | str | None
    priority: int
    isolation: Literal["process"] | None
    runs_on: Sequence[str] | AbstractSet[str]
    log_level: LogLevel | None
    aliases: Sequence[str] | AbstractSet[str]
    retention: timedelta | str | None
    success_retention: timedelta | str | None


class JobPolicies(Policies, total=False):
    """The keywords of ``@job`` and CommandJob."""

    catch_up: CatchUp
    overlap: Overlap
    start_within: timedelta | str | None
    finish_by: timedelta | str | None
    finish_risk: float
    min_interval: timedelta | str | None
    spread: timedelta | str | None
    payload_version: int
    each_shard: bool


class TaskPolicies(Policies, total=False):
    """The keywords of ``@task``."""

    payload: object
    payload_version: int
    upgrades: Mapping[int, Upgrade]
    codec: str
    concurrency: int | None
    rate_limit: str | None
    record: Records
    result_retention: timedelta | str | None


def declared(source: object, attribute: str, default: object = None) -> Any:
    """Return the declared value, property or result of a zero-argument method; else ``default``.
    Raise InvalidJob.
    """
    try:
        value = getattr(source, attribute)
    except AttributeError as error:
        if inspect.getattr_static(source, attribute, None) is not None:
            raise InvalidJob(
                f"{type(source).__name__}.{attribute} cannot be read: {error}"
            ) from error
        return default
    return value() if inspect.ismethod(value) and _takes_nothing(value) else value


def _takes_nothing(method: Callable[..., object]) -> bool:
    try:
        inspect.signature(method).bind()
    except TypeError:
        return False
    return True
