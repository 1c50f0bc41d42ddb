"""Events: published in the caller's transaction, handled by tasks in the order of their key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias, TypeVar, Unpack

import sqlalchemy as sa

from slotwise import Call, Client, ConfigurationError, InvalidPayload, JobRegistry
from slotwise.contrib.events import subscriptions
from slotwise.contrib.events.fan_out import (
    AT_ONCE,
    FannedOut,
    HandlersChanged,
    Seen,
    give,
    see,
)
from slotwise.contrib.events.handlers import (
    Handler,
    HandlerPolicies,
    handler_of,
    missing_tasks,
    refuse_double,
)
from slotwise.contrib.events.lanes import (
    Handlers,
    keys_of,
    lanes_of,
    lock_soon,
    promote,
)
from slotwise.contrib.events.loop import EventLoop
from slotwise.contrib.events.order import BLOCK, OnFailure
from slotwise.contrib.events.publishing import (
    Key,
    Publisher,
    checked_event,
    checked_key,
    payload_of_type,
    refuse_typos,
)
from slotwise.contrib.events.repair import (
    BEGIN,
    Place,
    Repaired,
    repair,
    repair_lanes,
)
from slotwise.contrib.events.retention import (
    KEPT,
    TURN,
    Forgotten,
    Pruned,
    forget_keys,
    prune,
)
from slotwise.contrib.events.row_ids import number_of
from slotwise.contrib.events.sharded import Sharded
from slotwise.spi import (
    Definition,
    Dialect,
    Joinable,
    Outcome,
    RowState,
    Settled,
    define,
    elapsed,
    parse_duration,
)
from slotwise.spi import Event as WorkerEvent

if TYPE_CHECKING:
    from slotwise import OneTimeTask

Subject = TypeVar("Subject")
#: How often a look begins anew because handlers are being registered.
_TRIES = 5
#: How many seconds the end of a worker waits for a round of the fan-out.
_LAST_ROUND = 5.0
#: For how many seconds the loop looks at a lane in which a settlement promoted nothing.
_OWED = 60.0
#: What a worker tells after a settlement was committed.
_AFTER_SETTLEMENTS = ("batch_settled", "reaped")
#: A hook in the transaction of a settlement.
_Hook: TypeAlias = Callable[[Sequence[Settled], sa.Connection], None]
_PLAIN = (type(None), bool, int, float, str, list, tuple, dict)


class Events:
    """Events of an application: who handles them, and how they are published.

    Declare handlers with ``on``, then ``attach`` a registry: it gets a task for each handler, and
    its workers give out the events. A process that only publishes needs no handler.
    """

    def __init__(self, *, retention: timedelta | str = KEPT) -> None:
        """``retention``: how long an event is kept at least. What has not ended for a handler
        is kept longer. Raises InvalidSetting.
        """
        self.retention = parse_duration(retention)
        self._handlers: dict[str, Handler] = {}
        self._declared: dict[str, Definition | None] = {}
        self._client: Client | None = None
        self._registry: JobRegistry | None = None
        self._publisher: tuple[Dialect, Publisher] | None = None
        self._loop: EventLoop | None = None
        #: With shards: those of each, and the name of the one to which a connection leads.
        self._on_shards: dict[str, Events] = {}
        self._shard_of: Callable[[object], str] | None = None
        self._lock = Lock()
        #: Names with rows that a settlement has promoted, until it is committed.
        self._promoted: set[str] = set()
        #: Rows, by name and key, after which a hook could promote nothing, and until when the loop
        #: looks at their lanes.
        self._owed: dict[tuple[str, str], float] = {}

    # -- declarations -----------------------------------------------------------------------

    def on(
        self,
        *events: str,
        name: str | None = None,
        on_failure: OnFailure = BLOCK,
        **policies: Unpack[HandlerPolicies],
    ) -> Callable[[Subject], Subject]:
        """Make a handler of a function, or of a one-time task: ``@events.on("order.paid",
        name="receipt")``. The default name is the function's.

        The function takes the event's data as a task does: ``ctx: TaskContext[OrderPaid]``, or
        arguments by name. ``ctx.id`` is such as "event-812". The other keywords are those of
        ``@task``; ``retry`` has pauses of 30 s, doubled up to 5 min, for a day. ``on_failure``: if
        an event is dead, the later ones of its key wait ("block"), or are handled ("continue").

        Raises InvalidJob, also for a handler of the same name, and ConfigurationError once a
        registry is attached.
        """
        if self._registry is not None:
            raise ConfigurationError(
                "events.on(…) comes after attach(registry); declare all handlers before it"
            )

        def declare(subject: Subject) -> Subject:
            handler = handler_of(subject, events, name, on_failure, policies)
            refuse_double(handler, self._handlers.values())
            self._handlers[handler.name] = handler
            return subject

        return declare

    def declare(self, event: str, data: object = None) -> None:
        """Declare an event without a handler here, and the type of its data, if any; ``publish``
        then knows its name. Raises ConfigurationError.
        """
        name = checked_event(event, "declare")
        self._declared[name] = None if data is None else payload_of_type(data)

    @property
    def handlers(self) -> list[Handler]:
        """The handlers, by name."""
        return [self._handlers[name] for name in sorted(self._handlers)]

    @property
    def tasks(self) -> list[OneTimeTask[object, object]]:
        """The task of each handler."""
        return [one.task for one in self.handlers]

    @property
    def known(self) -> set[str]:
        """The names of events that this application declares or handles."""
        handled = (name for one in self._handlers.values() for name in one.events)
        return {*handled, *self._declared}

    def attach(self, registry: JobRegistry) -> JobRegistry:
        """Add the handlers to a registry that has not got them as ``tasks``, and return it; its
        workers then give out events.

        With a registry of shards, each shard has its own events: ``on_shard`` returns them.

        Raises ConfigurationError if a name is taken, or the registry runs.
        """
        if self._registry is not None:
            raise ConfigurationError("events are attached to a registry already")
        if isinstance(registry, Sharded):
            return self._attach_to_shards(registry)
        registry.add(tasks=missing_tasks(self.handlers, registry))
        names = [name for one in self.handlers for name in one.names]
        hooks = dict(registry.hooks.after_settle)
        promote = (
            self.after_settle
        )  # one object: a hook is called once for all its rows
        before = {own: self._before(own) for own in hooks.values()}
        for name in names:
            own = hooks.get(name)
            hooks[name] = promote if own is None else before[own]
        registry.hooks = replace(registry.hooks, after_settle=hooks)
        self._registry = registry
        self.use(registry.client)
        registry.listen(self)
        return registry

    def _attach_to_shards(self, registry: Sharded) -> JobRegistry:
        assert isinstance(registry, JobRegistry)
        registry.add(tasks=missing_tasks(self.handlers, registry))
        for shard in registry.shards:
            mine = Events(retention=self.retention)
            mine._handlers = self._handlers
            mine._declared = self._declared
            mine.attach(registry.on(shard.name))
            self._on_shards[shard.name] = mine
        self._shard_of = registry.sharded.shard_of_connection
        self._registry = registry
        return registry

    def on_shard(self, name: str) -> Events:
        """Return the events of one shard. Raises ConfigurationError for an unknown name."""
        if name not in self._on_shards:
            known = ", ".join(self._on_shards) or "none"
            raise ConfigurationError(
                f"there are no events of a shard {name!r:.80}; known are {known}"
            )
        return self._on_shards[name]

    def use(self, client: Client) -> None:
        """Publish through the tables of this client: of a script that only publishes, or of a
        test.
        """
        self._client = client

    @classmethod
    def of(cls, registry: JobRegistry) -> Events | None:
        """Return the events that are attached to a registry; None without any."""
        found = (one for one in registry.hooks.listeners if isinstance(one, cls))
        return next(found, None)

    @property
    def client(self) -> Client:
        """The client whose tables are used. Raises ConfigurationError without one."""
        if self._on_shards:
            raise ConfigurationError(
                "these events are those of several shards; name one: "
                f"events.on_shard({next(iter(self._on_shards))!r})"
            )
        if self._client is None:
            raise ConfigurationError(
                "these events have no database; call events.attach(registry), or in a script "
                "events.use(client)"
            )
        return self._client

    # -- publish -----------------------------------------------------------------------

    def publish(
        self,
        connection: object,
        event: str,
        data: object = None,
        *,
        key: Key | None = None,
    ) -> int:
        """Publish an event in the caller's transaction; return its number.

        ``connection``: a SQLAlchemy Connection or Session, a psycopg connection, or
        ``django.db.connection``, in a transaction. ``data``: what the handlers' types allow; else
        values of JSON, a dataclass, or a model. Events of one ``key`` are handled in order; None:
        without an order. It only inserts a row. With shards, the event belongs to that of the
        connection. Raises ConfigurationError and InvalidPayload.
        """
        if self._shard_of is not None and connection is not None:
            mine = self.on_shard(self._shard_of(connection))
            return mine.publish(connection, event, data, key=key)
        work = self._insertion(connection, event, data, key)
        publish = self.client.within
        return publish(work, connection=connection, where="publish")  # type: ignore[arg-type]

    async def publish_async(
        self,
        connection: object,
        event: str,
        data: object = None,
        *,
        key: Key | None = None,
    ) -> int:
        """As ``publish``, on SQLAlchemy's AsyncConnection or AsyncSession, or psycopg's
        AsyncConnection. With shards: ``on_shard(…).publish_async``.
        """
        work = self._insertion(connection, event, data, key)
        publish = self.client.aio.within
        return await publish(work, connection=connection, where="publish")  # type: ignore[arg-type]

    def _insertion(
        self, connection: object, event: str, data: object, key: Key | None
    ) -> Callable[[Joinable], int]:
        if connection is None:
            raise ConfigurationError(
                f"publish({event!r:.120}): connection is None; an event is published in the "
                "transaction of what has happened: pass that connection or session"
            )
        name = checked_event(event, "publish")
        refuse_typos(name, self.known, "publish")
        order = checked_key(key, f"publish({name!r})")
        body = self._encoded(name, data)
        publisher = self._publisher_of(self.client)
        return lambda own: publisher.insert(own, name, order, body)

    def _publisher_of(self, client: Client) -> Publisher:
        known = self._publisher
        dialect = client.dialect
        if known is None or known[0] is not dialect:
            database = client.database
            channel = database.channel if database.settings.wake_up else None
            known = self._publisher = dialect, Publisher(dialect, channel)
        return known[1]

    def _encoded(self, name: str, data: object) -> bytes | None:
        """Return the data as bytes, which all handlers here can read."""
        declared = self._declared.get(name)
        readers = [one.definition for one in self.handlers if name in one.events]
        if declared is not None:
            readers.insert(0, declared)
        if isinstance(data, Call):
            body = define(data.task).payload.encode(data.data, name)
        else:
            body = _writer(readers, data).payload.encode(data, name)
        for one in readers:
            try:
                one.payload.decode(body)
            except InvalidPayload as error:
                raise InvalidPayload(
                    f"publish({name!r}): the handler {one.name!r} cannot read such data: {error}"
                ) from None
        return body

    # -- what workers do -----------------------------------------------------------------------

    def register(self) -> None:
        """Write which handlers there are to the database; each worker does so at its start."""
        client = self.client
        dialect = client.dialect
        wanted = [one.registration() for one in self.handlers]
        client.within(lambda own: subscriptions.register(own, dialect, wanted))

    def retire(self, handler: str, *events: str) -> int:
        """Give a handler no further events, of these names or of all, since its code has gone;
        return how many names it had. What it has got already stays. A worker that starts and
        still declares them begins anew.
        """
        client = self.client
        dialect = client.dialect
        return client.within(
            lambda own: subscriptions.retire(own, dialect, handler, events)
        )

    def fan_out(
        self,
        *,
        limit: int = AT_ONCE,
        wait_for: str | None = None,
        needs_turn: bool = True,
    ) -> FannedOut:
        """Give committed events to their handlers, as the loop of a worker does."""
        client = self.client
        dialect = client.dialect

        def look(own: Joinable) -> Seen | None:
            return see(own, dialect, limit=limit, needs_turn=needs_turn)

        for _ in range(_TRIES):
            seen = client.within(look, where="events")
            if seen is None:
                break
            if not seen.events:
                return FannedOut()
            hand_out = partial(give, dialect=dialect, seen=seen, wait_for=wait_for)
            work = partial(hand_out, needs_turn=needs_turn)
            with suppress(HandlersChanged):
                return client.within(work, where="events")
        return FannedOut(is_busy=True)

    def after_settle(self, rows: Sequence[Settled], tx: sa.Connection) -> None:
        """Promote the next row of each key for which a row has ended, in the settlement's own
        transaction.
        """
        dialect = self.client.dialect
        ended = _keys_of(tx, dialect, rows)
        if not ended:
            return
        try:
            alive = _alive(tx, dialect, [one for one in rows if _key(one) in ended])
            over = {
                (key[0], order) for key, order in ended.items() if key not in alive
            }
            names, missed = _promote(tx, dialect, over)
        except Exception:
            names = []
            missed = {(name, order) for (name, _), order in ended.items()}
            raise
        finally:
            with self._lock:
                self._promoted.update(names)
                self._owed.update(dict.fromkeys(missed, elapsed() + _OWED))

    def _before(self, own: _Hook) -> _Hook:
        """Return a hook that promotes, and then calls the application's own hook. If that one
        fails, the promotion is rolled back with it, and owed.
        """

        def both(rows: Sequence[Settled], tx: sa.Connection) -> None:
            ended = _keys_of(tx, self.client.dialect, rows)
            self.after_settle(rows, tx)
            try:
                own(rows, tx)
            except Exception:
                missed = {(name, order) for (name, _), order in ended.items()}
                with self._lock:
                    self._owed.update(dict.fromkeys(missed, elapsed() + _OWED))
                raise

        return both

    def repair_owed(self) -> list[str]:
        """Promote what a hook could not; return the names with rows that may run now.

        Race: its settlement may not be committed yet, so a lane with an active row is looked at
        again, for a time; after that, the walk over all lanes finds it.
        """
        now = elapsed()
        with self._lock:
            self._owed = {one: end for one, end in self._owed.items() if now < end}
            owed = set(self._owed)
        if not owed:
            return []
        client = self.client
        dialect = client.dialect
        names, done = client.within(lambda own: repair_lanes(own, dialect, owed))
        with self._lock:
            for one in done:
                self._owed.pop(one, None)
        return names

    def repair(self, place: Place = BEGIN) -> Repaired:
        """Look at some lanes from there on, and promote the next row where none runs."""
        client = self.client
        dialect = client.dialect
        return client.within(lambda own: repair(own, dialect, place))

    def prune(self, after: int = 0) -> Pruned:
        """Delete some old events that have ended for all handlers, with numbers after this one;
        none while another worker does.
        """
        client = self.client
        dialect = client.dialect
        kept = self.retention

        def work(own: Joinable) -> Pruned:
            assert isinstance(own, sa.Connection)
            if not dialect.alone(own, TURN):
                return Pruned(0, after)
            return prune(own, dialect, kept, after)

        return client.within(work)

    def forget_keys(self, after: str = "") -> Forgotten:
        """Delete some keys that no row has, of those after this one; none while another worker
        does.
        """
        client = self.client
        dialect = client.dialect

        def work(own: Joinable) -> Forgotten:
            assert isinstance(own, sa.Connection)
            if not dialect.alone(own, TURN):
                return Forgotten(0, after)
            return forget_keys(own, dialect, after)

        return client.within(work)

    # -- life -----------------------------------------------------------------------

    def wants(self, kind: type[WorkerEvent]) -> bool:
        """Whether this listener wants events of this kind."""
        return kind.name in ("worker_start", "drain_end", *_AFTER_SETTLEMENTS)

    def __call__(self, event: WorkerEvent) -> None:
        if event.name == "worker_start":
            self._start()
        elif event.name == "drain_end":
            self._stop()
        elif event.name in _AFTER_SETTLEMENTS:
            self._tell_promoted()

    @property
    def is_idle(self) -> bool:
        """Whether the loop of this process, if it has one, has given out all events."""
        return self._loop is None or self._loop.is_idle

    def _start(self) -> None:
        if self._registry is not None:
            self._loop = EventLoop(self, self._registry, wake).start()

    def _stop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.stop()
            loop.join(_LAST_ROUND)

    def _tell_promoted(self) -> None:
        """Wake workers after a settlement was committed."""
        with self._lock:
            names, self._promoted = self._promoted, set()
        if names and self._registry is not None and self._loop is not None:
            wake(self._registry, names)


def wake(registry: JobRegistry, names: set[str]) -> None:
    """Notify workers that rows of these names are due, first the one of this process."""
    worker = registry.worker
    if worker is not None:
        worker.poller.poll_now()
    if registry.settings.wake_up:
        registry.database.wake_ups.tell(*sorted(names))


def _promote(
    tx: sa.Connection, dialect: Dialect, over: set[tuple[str, str]]
) -> tuple[list[str], set[tuple[str, str]]]:
    """Promote behind rows that have ended, by name and key; return the names of the promoted rows,
    and those whose keys could not be locked.
    """
    handlers = Handlers(subscriptions.all_subscriptions(tx, dialect.tables))
    lanes = lanes_of(over, handlers)
    locked = lock_soon(tx, dialect.tables, keys_of(lanes))
    mine = [lane for lane in lanes if lane.key in locked]
    names = promote(tx, dialect, handlers, mine, may_be_active=False)
    return names, {(name, order) for name, order in over if order not in locked}


def _writer(readers: Sequence[Definition], data: object) -> Definition:
    """Return the declaration to write data with: one of its type, or of a later version; else
    one for its type.
    """
    for one in readers:
        if one.payload.kind is type(data) or one.payload.version > 1:
            return one
    return payload_of_type(object if isinstance(data, _PLAIN) else type(data))


def _key(row: Settled) -> tuple[str, str]:
    return row.job, row.id or ""


def _keys_of(
    tx: sa.Connection, dialect: Dialect, rows: Sequence[Settled]
) -> Mapping[tuple[str, str], str]:
    """Return the keys of the events of these rows, by name and id; those without have none."""
    mine = {_key(one): number_of(one.id or "") for one in rows}
    ids = sorted({number for number in mine.values() if number is not None})
    events = dialect.tables.events.c
    found = sa.select(events.id, events.key).where(events.key.is_not(None))
    rows_found = tx.execute(found.where(events.id.in_(ids))) if ids else ()
    keys: dict[int | None, str] = {id: str(key) for id, key in rows_found}
    return {row: keys[number] for row, number in mine.items() if number in keys}


def _doubtful(rows: Sequence[Settled]) -> dict[str, list[str]]:
    """Return the ids of these rows, by name, that did not succeed."""
    ids_of: dict[str, list[str]] = {}
    for one in rows:
        if one.outcome != Outcome.SUCCEEDED:
            ids_of.setdefault(one.job, []).append(one.id or "")
    return ids_of


def _alive(
    tx: sa.Connection, dialect: Dialect, rows: Sequence[Settled]
) -> set[tuple[str, str]]:
    """Return those of these rows, by name and id, of which another attempt follows."""
    tasks = dialect.tables.tasks.c
    is_open = tasks.state.is_(None) | (tasks.state != RowState.DEAD)
    found: set[tuple[str, str]] = set()
    for name, ids in sorted(_doubtful(rows).items()):
        mine = tasks.task_name == name, dialect.among(tasks.task_instance, ids)
        there = tx.execute(sa.select(tasks.task_instance).where(*mine, is_open))
        found |= {(name, id) for (id,) in there}
    return found
