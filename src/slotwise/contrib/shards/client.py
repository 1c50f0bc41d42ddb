"""Schedule tasks and instances on the shard that a name, a connection or a key says."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Final, Never, TypeAlias, TypedDict, Unpack, cast

from slotwise import (
    Call,
    Client,
    ConfigurationError,
    DatabaseProblem,
    DistributedJob,
    OneTimeTask,
    Receipt,
)
from slotwise.contrib.shards.callers import check_connection, shard_of_connection
from slotwise.contrib.shards.one_shard import ShardRegistry
from slotwise.contrib.shards.shards import Shards
from slotwise.spi import TaskOptions, elapsed

if TYPE_CHECKING:
    import psycopg
    import sqlalchemy as sa
    from sqlalchemy import orm

    from slotwise import Schedule
    from slotwise.inspect import TaskInfo, TaskResult

#: How long the map of a shard is taken as checked, in seconds.
FRESH: Final = 15.0
#: A task, and a job with instances: its class, an instance of it, a function, or its name.
Task: TypeAlias = OneTimeTask[Never, Never] | type[OneTimeTask[Never, Never]] | str
AnyTask: TypeAlias = (
    DistributedJob[Never, Never] | type[DistributedJob[Never, Never]] | Task
)


class Place(TypedDict, total=False):
    """The keywords that say where: the shard, a key, or a connection of the caller."""

    shard: str | None
    shard_key: str | None
    connection: sa.Connection | orm.Session | psycopg.Connection[object] | None


class PlacedOptions(TaskOptions, Place, total=False):
    """The keywords of ``schedule``."""


class ShardedClient:
    """Commands on one-time tasks and recurring instances of all shards.

    Where a call goes: to ``shard``; else, with ``connection``, to the shard of that connection;
    else by ``shard_key``, which is the id by default. ``on`` has the whole client of one shard,
    with ``aio``, ``inspect`` and ``operations``. An id is unique per shard. Raises
    ConfigurationError for an unknown shard, a key that is no string, and a map of keys that
    differs from that of the database, and for a connection that leads elsewhere or while that is
    unknown; what the database raises names the shard.
    """

    def __init__(
        self, shards: Shards, registry_of: Callable[[str], ShardRegistry]
    ) -> None:
        self._shards = shards
        self._registry_of = registry_of
        self._turn = threading.Lock()
        self._checked: dict[str, float] = {}

    def on(self, shard: str) -> Client:
        """Return the client of one shard. Raises ConfigurationError for an unknown name."""
        return self._registry_of(shard).client

    def each(self) -> Iterator[tuple[str, Client]]:
        """Yield the name and the client of each shard."""
        for shard in self._shards:
            yield shard.name, self.on(shard.name)

    def shard_of(self, key: str) -> str:
        """Return the name of the shard to which the map sends this key."""
        return self._shards.map.shard_of(key)

    def shard_of_connection(self, connection: object) -> str:
        """Return the name of the shard to which a connection leads; it is in a transaction.

        Raises ConfigurationError if it leads to none, or if that is unknown.
        """
        return shard_of_connection(connection, list(self._shards), self.on)

    def schedule(
        self,
        task: Task | Call,
        data: object = None,
        **options: Unpack[PlacedOptions],
    ) -> Receipt:
        """Schedule a task, as ``Client.schedule`` does, on the shard of this call."""
        shard = options.pop("shard", None)
        shard_key = options.pop("shard_key", None)
        connection = options.get("connection")
        says_where = (options.get("id"), shard, shard_key, connection)
        if all(word is None for word in says_where):
            options["id"] = uuid.uuid4().hex
        name = self._place(options.get("id"), shard, shard_key, connection)
        with self._on_shard(name) as client:
            put = cast("Callable[..., Receipt]", client.schedule)
            return put(task, data, **options)

    def schedule_recurring(
        self,
        task: AnyTask | Call,
        id: str,
        schedule: Schedule | str,
        data: object = None,
        *,
        priority: int | None = None,
        **place: Unpack[Place],
    ) -> datetime | None:
        """Create or change a recurring instance, as ``Client.schedule_recurring`` does."""
        name = self._place(id, **place)
        with self._on_shard(name) as client:
            return client.schedule_recurring(
                task,
                id,
                schedule,
                data,
                priority=priority,
                connection=place.get("connection"),
            )

    def unschedule_recurring(
        self, task: AnyTask, id: str, **place: Unpack[Place]
    ) -> bool:
        """Remove a recurring instance, as ``Client.unschedule_recurring`` does."""
        name = self._place(id, **place)
        with self._on_shard(name) as client:
            return client.unschedule_recurring(
                task,
                id,
                connection=place.get("connection"),
            )

    def get(self, task: Task, id: str, **place: Unpack[Place]) -> TaskInfo | None:
        """One task with its data and state; None if it has ended, or never existed."""
        connection = place.get("connection")
        for name in self._places(id, **place):
            with self._on_shard(name) as client:
                found = client.get(task, id, connection=connection)
            if found is not None:
                return found
        return None

    def result(self, task: Task, id: str, **place: Unpack[Place]) -> TaskResult | None:
        """The newest successful end under this id, with its ``result``; None if there is none."""
        connection = place.get("connection")
        for name in self._places(id, **place):
            with self._on_shard(name) as client:
                found = client.result(task, id, connection=connection)
            if found is not None:
                return found
        return None

    def cancel(self, task: Task, id: str, **place: Unpack[Place]) -> Receipt:
        """Remove a task that waits, or ask its handler to stop, as ``Client.cancel`` does."""
        connection = place.get("connection")
        return self._first(
            lambda client: client.cancel(task, id, connection=connection),
            id,
            **place,
        )

    def reschedule(
        self,
        task: Task,
        id: str,
        *,
        at: datetime | None = None,
        delay: str | None = None,
        **place: Unpack[Place],
    ) -> Receipt:
        """Change the due time of a waiting task, as ``Client.reschedule`` does."""
        connection = place.get("connection")
        return self._first(
            lambda client: client.reschedule(
                task,
                id,
                at=at,
                delay=delay,
                connection=connection,
            ),
            id,
            **place,
        )

    # -- where ------------------------------------------------------------------------------------

    def _first(
        self, call: Callable[[Client], Receipt], id: str, **place: Unpack[Place]
    ) -> Receipt:
        """Call on the shard of the map, and on the others as long as the task is gone there."""
        receipt = None
        for name in self._places(id, **place):
            with self._on_shard(name) as client:
                receipt = call(client)
            if receipt.status != "gone":
                return receipt
        assert receipt is not None
        return receipt

    def _places(self, id: str, **place: Unpack[Place]) -> Iterator[str]:
        """Yield where a task may be: at its place, and where a former map may have put it.

        A former map may have given keys to any shard, so all are asked if nothing says where, those
        that have keys now first.
        """
        first = self._place(id, **place)
        yield first
        if any(place.get(word) is not None for word in ("shard", "connection")):
            return
        others = [*self._shards.map.names, *(one.name for one in self._shards)]
        for name in dict.fromkeys(others):
            if name != first:
                yield name

    def _place(
        self,
        id: str | None = None,
        shard: str | None = None,
        shard_key: str | None = None,
        connection: object = None,
    ) -> str:
        """Return the name of the shard of a call. Raises ConfigurationError."""
        if shard is not None and shard_key is not None:
            raise ConfigurationError(
                "shard and shard_key both say where; keep one of them"
            )
        if shard is not None:
            named = self._shards[shard]
            if connection is not None:
                check_connection(connection, named, list(self._shards), self.on)
            return named.name
        if connection is not None and shard_key is not None:
            raise ConfigurationError(
                "shard_key is for calls of their own; with connection the shard is that of "
                "the connection: leave shard_key out"
            )
        if connection is not None:
            return self.shard_of_connection(connection)
        key = id if shard_key is None else shard_key
        if key is None:
            raise ConfigurationError(
                "there is neither an id nor a shard_key; name one"
            )
        name = self._shards.map.shard_of(key)
        with self._on_shard(name):
            self._check_map(name)
        return name

    def _check_map(self, name: str) -> None:
        """Raise ConfigurationError if the database has another map, asked now and then."""
        with self._turn:
            if elapsed() - self._checked.get(name, -FRESH) < FRESH:
                return
        self._registry_of(name).check()
        with self._turn:
            self._checked[name] = elapsed()

    @contextmanager
    def _on_shard(self, name: str) -> Iterator[Client]:
        """Yield the client; errors of the database name the shard."""
        registry = self._registry_of(name)
        try:
            with registry.database.in_words():
                yield registry.client
        except DatabaseProblem as error:
            if str(error).startswith("shard "):
                raise
            _raise_of(name, error)


def _raise_of(name: str, error: DatabaseProblem) -> Never:
    raise type(error)(f"shard {name}: {error}") from error
