"""The context of a handler: slot, claim, stop signal, checkpoint."""

from __future__ import annotations

import logging
from concurrent.futures import Future, InvalidStateError, wait
from datetime import timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Never,
    Protocol,
    TypeAlias,
    TypedDict,
    Unpack,
    overload,
)

from typing_extensions import TypeVar

from slotwise.errors import ConfigurationError, InvalidSetting, JobCancelled
from slotwise.model.durations import format_duration, parse_duration
from slotwise.model.records import BEGINNING, FollowUps
from slotwise.model.vocabulary import Origin
from slotwise.payload.payload import UNTYPED
from slotwise.schedules.text import readable

#: The type of a task's data, None if it declares none.
T = TypeVar("T", default=None)
T_co = TypeVar("T_co", default=None, covariant=True)
#: The type of what the lifespan yields.
S_co = TypeVar("S_co", default=object, covariant=True)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    import psycopg
    import sqlalchemy as sa
    from sqlalchemy import orm
    from sqlalchemy.ext import asyncio as async_sa

    from slotwise.jobs.functions import Call
    from slotwise.jobs.job import OneTimeTask
    from slotwise.model.records import Claim, Follow, IfExists
    from slotwise.schedules import Schedule

    #: A connection whose transaction is joined: a synchronous one, or an asynchronous one, whose
    #: call is awaited.
    SyncConnection: TypeAlias = (
        sa.Connection
        | orm.Session
        | orm.scoped_session[Any]
        | psycopg.Connection[object]
    )
    AsyncConnection: TypeAlias = (
        async_sa.AsyncConnection
        | async_sa.AsyncSession
        | async_sa.async_scoped_session[Any]
        | psycopg.AsyncConnection[object]
    )
    Connection: TypeAlias = SyncConnection | AsyncConnection

    #: A task: its class, an instance of it, a function under ``@task``; or its name, if another
    #: process registers it.
    TaskOf: TypeAlias = OneTimeTask[T, Never] | type[OneTimeTask[T, Never]] | str


class ShardPlace(Protocol):
    """The shard of an attempt: its name, and the application's own pool of its database."""

    @property
    def name(self) -> str: ...
    @property
    def engine(self) -> sa.Engine: ...


class TaskOptions(TypedDict, total=False):
    """The keywords of ``client.schedule`` and ``ctx.then``."""

    id: str | None
    at: datetime | None
    delay: timedelta | str | None
    priority: int | None
    if_exists: IfExists
    countdown: int


class Signal:
    """The stop signal of a handler, with its reason: lost, operator, timeout or shutdown. The
    first reason counts.
    """

    __slots__ = ("_first",)

    def __init__(self) -> None:
        self._first: Future[str] = Future()

    @property
    def reason(self) -> str | None:
        return self._first.result() if self._first.done() else None

    @property
    def is_set(self) -> bool:
        return self._first.done()

    def set(self, reason: str) -> bool:
        """Set the signal; return True for the first caller only."""
        try:
            self._first.set_result(reason)
        except InvalidStateError:
            return False
        return True

    def on_set(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the signal is set, at once if it already is."""
        self._first.add_done_callback(lambda _: callback())

    def wait(self, seconds: float) -> bool:
        return bool(wait([self._first], seconds).done)


_BOTH = (
    "ctx.then and ctx.count_down are written by the settlement, which complete_in "
    "replaces; with complete_in use: ctx.client.schedule(…, connection=…)"
)
_CANNOT_RAISE = (
    'ctx.then(if_exists="raise"): it is written after the handler returned, which '
    'can no longer raise; write "keep", "replace" or "reschedule"'
)
_OPEN = (
    "ctx.checkpoint(value): a transaction that is guarded for this attempt is open, and may still "
    "roll back; write ctx.checkpoint(value, connection), or commit first"
)
_TOO_LATE = "the attempt has ended, and its follow-ups are written already"


class Hold(Protocol):
    """The claim of an attempt, as its context sees it."""

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
    #: The handler has used its checkpoint.
    checkpointed: bool
    #: The method that was called with an async connection and is not awaited yet.
    unawaited: str | None
    follow_ups: FollowUps | None


class Fence(Protocol):
    """Proves in a user's own transaction that a claim is still valid."""

    def guard(
        self, claim: Claim, connection: Connection
    ) -> Awaitable[None] | None: ...
    def complete_in(
        self, claim: Claim, connection: Connection
    ) -> Awaitable[None] | None: ...
    def save(
        self, claim: Claim, value: object, connection: Connection | None = None
    ) -> Awaitable[None] | None: ...
    def saved(self, claim: Claim) -> object: ...
    def is_open(self, connection: Connection) -> bool: ...


class Context(Generic[S_co]):
    """The claim of an attempt: what the contexts of jobs and tasks share, for interceptors and
    hooks of both.
    """

    __slots__ = (
        "__weakref__",
        "_data",
        "_fence",
        "_guarded",
        "_hold",
        "_log",
        "_read",
        "_state",
        "_stopping",
        "client",
    )
    _MISSING: ClassVar[object] = object()

    def __init__(
        self,
        hold: Hold,
        *,
        fence: Fence,
        read: Callable[[bytes | None], object] = UNTYPED.decode,
        client: Any = None,
        state: S_co | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._hold = hold
        self._fence = fence
        #: Connections in whose transactions this claim is guarded.
        self._guarded: Sequence[Connection] = ()
        self._stopping = stopping
        self._read = read
        self._data: object = self._MISSING
        #: A client bound to the registry: schedules further tasks.
        self.client = client
        self._state = state
        self._log: logging.LoggerAdapter[logging.Logger] | None = None

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines carry job, id, slot, attempt and token."""
        if self._log is None:
            claim = self._hold.claim
            facts = {
                "job": self.name,
                "id": self.id,
                "slot": claim.slot,
                "attempt": self.attempt,
                "token": claim.token,
            }
            self._log = logging.LoggerAdapter(logging.getLogger("slotwise.job"), facts)
        return self._log

    @property
    def name(self) -> str:
        """The job's name."""
        return self._hold.claim.row.task_name

    @property
    def id(self) -> str:
        """The id of a one-time task or of a recurring instance; ``recurring`` for a job's own
        slots.

        Triggers, retries, backfills and slots that run side by side have the instance of their
        job.
        """
        row = self._hold.claim.row
        return row.plan_instance or row.task_instance

    @property
    def schedule(self) -> Schedule | None:
        """The schedule of the job's row; None without one, or if a newer release has written
        it.
        """
        found = readable(self._hold.claim.row.schedule)
        return None if found is None else found.running

    @property
    def attempt(self) -> int:
        """The number of this start of the slot's handler, from 1."""
        return self._hold.claim.row.attempt

    @property
    def is_catch_up(self) -> bool:
        """Whether this slot was missed and runs late."""
        return self._hold.claim.row.origin == Origin.CATCH_UP

    @property
    def missed_count(self) -> int:
        """How many older missed slots this run stands for."""
        return self._hold.claim.row.collapsed

    @property
    def token(self) -> int:
        """The fencing token: it rises with every claim of this row, so a storage can reject a
        lower one.
        """
        return self._hold.claim.token

    @property
    def idempotency_key(self) -> str:
        """The same string in every attempt of this slot, and in no other slot or task."""
        row = self._hold.claim.row
        if row.ledger_key is None:
            return f"{row.task_name}/{row.task_instance}/{row.created_version}"
        name, instance, slot = row.ledger_key
        return f"{name}/{instance}/{slot.isoformat()}"

    @property
    def worker(self) -> str:
        """The worker that runs this attempt: host, pid and boot id."""
        return self._hold.claim.holder

    @property
    def state(self) -> S_co:
        """What the registry's lifespan yields; None without one."""
        found: S_co = self._state  # type: ignore[assignment]
        return found

    @property
    def shard(self) -> ShardPlace:
        """The shard whose row this attempt runs, with the application's pool of that database.

        Raises ConfigurationError if the registry has no shards.
        """
        found: ShardPlace | None = getattr(self.client, "shard", None)
        if found is None:
            raise ConfigurationError(
                "ctx.shard: this registry has no shards; make a ShardedRegistry of it"
            )
        return found

    @property
    def data(self) -> object:
        """The payload, decoded once; None if there is none."""
        if self._data is self._MISSING:
            self._data = self._read(self._hold.claim.row.task_data)
        return self._data

    @property
    def lost(self) -> bool:
        """True when the claim is lost, or must be treated as lost."""
        return self._hold.lost

    @property
    def cancelled(self) -> bool:
        """True when the handler should stop; ``cancel_reason`` says why."""
        return self._hold.stop_reason is not None

    @property
    def cancel_reason(self) -> str | None:
        """``lost``, ``operator``, ``overlap`` (a newer slot), ``timeout``, ``shutdown``; None:
        keep running.
        """
        return self._hold.stop_reason

    @property
    def stopping(self) -> bool:
        """True when the worker drains: a handler that runs for ever should return."""
        return self._stopping()

    @property
    def lease_left(self) -> timedelta:
        """How long the claim is certainly valid without another heartbeat, by a monotonic
        clock.
        """
        return self._hold.lease_left()

    def wait(self, duration: timedelta | str) -> bool:
        """Sleep for ``duration`` (``timedelta`` or ``"5s"``), but return early if the handler is
        asked to stop.

        Return whether it was. Raise InvalidSetting for a bare number, which has no unit.
        """
        if isinstance(duration, int | float):
            written = format_duration(timedelta(seconds=duration))
            raise InvalidSetting(
                f'ctx.wait({duration}): a number has no unit; write ctx.wait("{written}")'
            )
        return self._hold.signal.wait(parse_duration(duration).total_seconds())

    def cancel(self, reason: str) -> bool:
        """Ask the handler of this attempt to stop, from any thread; ``cancel_reason`` is then
        ``reason``.

        If the handler stops, the slot starts again as its next attempt; with ``give_up`` it ends
        as cancelled. Return False if the handler was asked before: the first reason counts.
        ``register_reason`` gives a reason its sentences.
        """
        return self._hold.signal.set(reason)

    def check(self) -> None:
        """Raise JobCancelled if the handler should stop."""
        if self.cancelled:
            which = self._hold.claim.slot or self.id
            raise JobCancelled(
                f"{self.name} {which} was asked to stop: {self.cancel_reason}"
            )

    @overload
    def guard(self, connection: SyncConnection) -> None: ...
    @overload
    def guard(self, connection: AsyncConnection) -> Awaitable[None]: ...
    def guard(self, connection: Connection) -> Awaitable[None] | None:
        """Prove in the transaction of ``connection`` that this claim is valid, and keep it valid
        until the transaction ends.

        ``connection`` is in a transaction on the database that holds the tables: SQLAlchemy's
        Connection or Session, or psycopg's Connection; with an AsyncConnection or AsyncSession of
        either: ``await ctx.guard(connection)``. Raises ClaimLost for a stale claim, so that the
        transaction rolls back. Heartbeats continue meanwhile.
        """
        pending = self._fence.guard(self._hold.claim, connection)
        return self._settled("guard", connection, pending)

    @overload
    def complete_in(self, connection: SyncConnection) -> None: ...
    @overload
    def complete_in(self, connection: AsyncConnection) -> Awaitable[None]: ...
    def complete_in(self, connection: Connection) -> Awaitable[None] | None:
        """Guard, and write the slot's success in the same transaction: work and settlement commit
        together, or neither.

        If that transaction rolls back, the attempt failed, whatever the handler returns.
        Connections are those of ``guard``: with an async one, ``await
        ctx.complete_in(connection)``. Raises ClaimLost for a stale claim.
        """
        if self._hold.follow_ups is not None:
            raise ConfigurationError(_BOTH)
        pending = self._fence.complete_in(self._hold.claim, connection)
        return self._settled("complete_in", connection, pending, promise=True)

    @property
    def last_checkpoint(self) -> object:
        """What ``checkpoint`` has committed last for this slot or task, in any attempt; None if
        there is nothing.

        Read from the database each time. Raises InvalidPayload if another program has written it.
        """
        self._hold.checkpointed = True
        return self._fence.saved(self._hold.claim)

    @overload
    def checkpoint(
        self, value: object, connection: SyncConnection | None = None
    ) -> None: ...
    @overload
    def checkpoint(
        self, value: object, connection: AsyncConnection
    ) -> Awaitable[None]: ...
    def checkpoint(
        self, value: object, connection: Connection | None = None
    ) -> Awaitable[None] | None:
        """Save where the work stands: the next attempt of this slot or task finds it in
        ``last_checkpoint``. Its success deletes it.

        With ``connection`` (as of ``guard``, which this includes) work and checkpoint commit
        together, or neither. Without, it is committed at once; call it between two transactions,
        and in an ``async def`` handler as ``await asyncio.to_thread(ctx.checkpoint, value)``.

        ``value`` has JSON's types, tuples, datetime, date, time, UUID and Decimal, and comes back
        with the same types; at most 64 KiB. Whole numbers under the keys ``done`` and ``total`` of
        a dict are shown as the progress of the slot.

        Raises InvalidPayload for another value, ClaimLost for a stale claim, which saves nothing,
        and without ``connection`` ConfigurationError while one that was guarded for this attempt
        is in a transaction.
        """
        self._hold.checkpointed = True
        claim = self._hold.claim
        if connection is not None:
            pending = self._fence.save(claim, value, connection)
            return self._settled("checkpoint", connection, pending)
        if any(map(self._fence.is_open, self._guarded)):
            raise ConfigurationError(_OPEN)
        self._fence.save(claim, value)
        return None

    def _settled(
        self,
        word: str,
        connection: Connection,
        pending: Awaitable[None] | None,
        *,
        promise: bool = False,
    ) -> Awaitable[None] | None:
        """Return what the caller must await; None if it is done. An attempt that does not await
        it fails.
        """
        if pending is None:
            self._note(connection, promise=promise)
            return None
        self._hold.unawaited = word

        async def wait() -> None:
            self._hold.unawaited = None
            await pending
            self._note(connection, promise=promise)

        return wait()

    def _note(self, connection: Connection, *, promise: bool) -> None:
        """Remember what this connection's transaction guards, and forget those that have ended."""
        self._hold.promised = self._hold.promised or promise
        with BEGINNING:
            others = (one for one in self._guarded if one is not connection)
            self._guarded = (*filter(self._fence.is_open, others), connection)

    @overload
    def then(
        self,
        task: TaskOf[None] | Call,
        data: None = None,
        **options: Unpack[TaskOptions],
    ) -> str: ...
    @overload
    def then(
        self, task: TaskOf[T], data: T, **options: Unpack[TaskOptions]
    ) -> str: ...
    def then(
        self,
        task: TaskOf[T] | Call,
        data: T | None = None,
        **options: Unpack[TaskOptions],
    ) -> str:
        """Schedule a follow-up task if, and only if, this attempt succeeds: both commit together.
        Return its id.

        The arguments are those of ``client.schedule``; ``delay`` counts from the end of this
        attempt. ``if_exists`` is "keep" by default; "raise" is rejected. With the id of this very
        task (``id=ctx.id``) the follow-up replaces it. ``countdown``: the follow-up is blocked
        until this many handlers have called ``count_down`` with its id. Raises what
        ``client.schedule`` raises, and ConfigurationError together with ``complete_in``: there
        pass ``connection`` to ``client.schedule`` instead.
        """
        if options.get("if_exists") == "raise":
            raise ConfigurationError(_CANNOT_RAISE)
        follow: Follow = self.client._follow(task, data, **options)
        self._follow_ups().follows.append(follow)
        return follow.wanted.instance

    def count_down(self, task: TaskOf[Never], id: str) -> None:
        """When this attempt succeeds, count the ``countdown`` of a blocked task down by one; at
        zero it may start.

        Repeated calls for one id in one attempt count once. A call for an id that is not blocked
        is ignored, with a WARNING in the worker's log.
        """
        self._follow_ups().arrivals.append(self.client._key(task, id))

    def _follow_ups(self) -> FollowUps:
        if self._hold.promised or self._hold.ended:
            raise ConfigurationError(_BOTH if self._hold.promised else _TOO_LATE)
        with BEGINNING:
            self._hold.follow_ups = self._hold.follow_ups or FollowUps()
            return self._hold.follow_ups


class JobContext(Context[S_co], Generic[T_co, S_co]):
    """The slot and the claim of a handler. ``JobContext[Customer | None]``: the job's recurring
    instances have such data. ``JobContext[None, Shop]``: ``ctx.state`` is a Shop.
    """

    __slots__ = ()

    @property
    def data(self) -> T_co:
        """The data of a recurring instance; None in the job's own slots."""
        found: T_co = super().data  # type: ignore[assignment]
        return found

    @property
    def slot(self) -> datetime:
        """The slot, an aware UTC instant; the same in every attempt."""
        return self._hold.claim.slot  # type: ignore[return-value]

    @property
    def interval_start(self) -> datetime | None:
        """The previous slot, where the period of this run begins; None if there is none."""
        slot = self._hold.claim.slot
        schedule = self.schedule
        return (
            None
            if slot is None or schedule is None or schedule.from_end
            else schedule.latest_before(slot)
        )

    @property
    def interval_end(self) -> datetime:
        """The end of the period of this run: the slot itself."""
        return self.slot


class TaskContext(Context[S_co], Generic[T_co, S_co]):
    """The context of a one-time task, with data of the task's own type. ``TaskContext`` alone: the
    task has no data. ``TaskContext[Mail, Shop]``: ``ctx.state`` is a Shop.
    """

    __slots__ = ()

    @property
    def data(self) -> T_co:
        """The payload, of the type that the task declares."""
        found: T_co = super().data  # type: ignore[assignment]
        return found

    if (
        not TYPE_CHECKING
    ):  # a one-time task has no slot: None; a recurring instance of a task has
        slot = JobContext.slot
        interval_start = JobContext.interval_start
        interval_end = JobContext.interval_end
