"""Schedule one-time and recurring tasks from anywhere: a request, a script or a handler."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Self, Unpack, overload

from slotwise.client.arguments import (
    Item,
    Receipt,
    Task,
    called,
    checked_choice,
    checked_countdown,
    checked_id,
    fresh_ids,
    payload_for,
    same_task,
    taken,
    task_name,
    weight,
    when,
    wrong_id,
)
from slotwise.client.bulk import GATHER, Chunk, Load, chunks, size_of_chunks
from slotwise.client.lost_replies import LostReplies
from slotwise.errors import ConfigurationError
from slotwise.jobs.context import T, TaskOptions
from slotwise.jobs.functions import Call
from slotwise.model.records import Follow, IfExists, Key, Wanted
from slotwise.store.connect.caller_transaction import (
    Joinable,
    Result,
    is_without_transaction,
)
from slotwise.store.connect.database_errors import lacks_tables
from slotwise.store.queue.queue import BulkResult

if TYPE_CHECKING:
    from slotwise.client.async_client import AsyncClient
    from slotwise.client.inspection import Inspection
    from slotwise.client.opening import Application
    from slotwise.client.operations import Operations
    from slotwise.jobs.context import ShardPlace, SyncConnection, TaskOf
    from slotwise.settings.settings import Settings
    from slotwise.store.connect.database import Database
    from slotwise.store.dialects.port import Dialect
    from slotwise.store.slots.store import Store

from slotwise.client.commands import BulkOptions, Commands, Options
from slotwise.client.transactions import errors_of, inserts_alone, repeated


class Client(Commands["SyncConnection"]):
    """Commands on one-time tasks; works without a worker in this process.

    Each takes ``connection``: a SQLAlchemy Connection or Session, a psycopg connection, or
    ``django.db.connection``, whose transaction it joins. Without one it has a transaction of its
    own. A task is its class, an instance, a function under ``@task``, or a name. All calls wait
    for the database; ``aio`` has the same to be awaited. Raises InvalidJob for an invalid task,
    InvalidPayload for data of another type than the task's, ConfigurationError for any other
    invalid argument.
    """

    #: The shard that this client leads to; None without shards.
    shard: ShardPlace | None = None

    def __init__(
        self, store: Callable[[], Store], wake: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(store, wake)
        self._lost_replies = LostReplies(
            store, lambda key: self.get(key.task_name, key.task_instance) is not None
        )

    @classmethod
    @contextmanager
    def open(
        cls,
        where: Settings | str | None = None,
        *,
        application: Application | None = None,
    ) -> Iterator[Self]:
        """Open the tables for a script, and close the connections at the end.

        ``where``: settings, or the address of the database; by default those of the
        ``application`` (a JobRegistry), else of environment and settings file. With an
        ``application`` its jobs and tasks are known: their types, priorities and limits count.
        Raises DatabaseUnreachable or another DatabaseProblem, SchemaMissing, SchemaMismatch.
        """
        from slotwise.client.opening import open_store  # late: it brings alembic

        with open_store(where, application) as store:
            yield cls(lambda: store)

    @functools.cached_property
    def operations(self) -> Operations:
        """Operations on jobs: pause, trigger, cancel, retry and others."""
        from slotwise.client.operations import (
            Operations,
        )  # late: most clients give none

        return Operations(self._make_store, self._wake)

    @property
    def database(self) -> Database:
        """The connections to the tables, for statements of integrations."""
        return self._make_store().database

    @property
    def inspect(self) -> Inspection:
        """Reads jobs, slots, tasks and workers for people and dashboards; changes nothing."""
        from slotwise.client.inspection import (
            Inspection,
        )  # late: most clients read nothing

        return Inspection(self._make_store)

    @property
    def aio(self) -> AsyncClient:
        """The same commands for asyncio applications."""
        from slotwise.client.async_client import (
            AsyncClient,
        )  # late: it imports this module

        return AsyncClient(self)

    @overload
    def schedule(
        self,
        task: TaskOf[None] | Call,
        data: None = None,
        **options: Unpack[Options[SyncConnection]],
    ) -> Receipt: ...
    @overload
    def schedule(
        self, task: TaskOf[T], data: T, **options: Unpack[Options[SyncConnection]]
    ) -> Receipt: ...
    @repeated
    def schedule(
        self,
        task: TaskOf[T] | Call,
        data: T | None = None,
        *,
        connection: SyncConnection | None = None,
        **options: Unpack[TaskOptions],
    ) -> Receipt:
        """Schedule ``task`` with ``data``, or a call: ``schedule(send_mail.call(to="ann"))``; the
        receipt has its id.

        ``at`` (aware) or ``delay`` (``timedelta`` or ``"10s"``) set the due time, by the
        database's clock; without them it is due now. ``id`` has at most 250 characters; the
        default is a new one. If a task with this id exists, waiting, dead or running: "keep"
        leaves it unchanged (the receipt says "exists" or "running"), "raise" raises
        InstanceExists, "replace" replaces it unless it runs, "reschedule" gives it this time and
        priority and keeps its data. ``countdown``: the task is blocked until this many handlers
        have called ``ctx.count_down`` with its id.
        """
        name, row, if_exists = self._follow(task, data, **options)
        if options.get("id") is not None:
            name = self._home(Key(name, row.instance), connection).task_name
        word = name if self._is_soon(row.when) and not row.waits_for else None
        key = Key(name, row.instance)
        has_id = options.get("id") is not None
        surely = connection is None and has_id
        receipt = Receipt(task=name, id=row.instance, status="scheduled")
        if surely and self._lost_replies.was_scheduled(key):
            return self._transactions.done(connection, receipt)
        is_alone = (
            connection is None and not has_id and inserts_alone(self._make_store())
        )
        with (
            self._lost_replies.noted(key, is_single=is_alone),
            self._transactions.joining(connection, name, word, surely=surely) as (
                queue,
                own,
            ),
        ):
            status = queue.put(own, name, row, if_exists)
            if if_exists == "raise" and status != "scheduled":
                found = queue.reader.find(own, key)
                raise taken(name, row.instance, found.state if found else None)
            receipt = replace(receipt, status=status)
        return self._transactions.done(connection, receipt)

    @overload
    def schedule_many(
        self,
        calls: Iterable[Call | Item[Call]],
        /,
        **how: Unpack[BulkOptions[SyncConnection]],
    ) -> BulkResult: ...
    @overload
    def schedule_many(
        self,
        task: TaskOf[T],
        items: Iterable[T | Item[T]],
        **how: Unpack[BulkOptions[SyncConnection]],
    ) -> BulkResult: ...
    def schedule_many(
        self,
        task: object,
        items: Iterable[object] | None = None,
        *,
        at: datetime | None = None,
        delay: timedelta | str | None = None,
        priority: int | None = None,
        if_exists: IfExists | None = None,
        chunk_size: int | None = None,
        copy: bool = False,
        progress: Callable[[BulkResult], object] = lambda tally: None,
        connection: SyncConnection | None = None,
    ) -> BulkResult:
        """Schedule a task for each of ``items`` (its data, or an Item), ``chunk_size`` of them per
        statement; or calls of one task: ``schedule_many(send_mail.call(to=to) for to in names)``.

        ``items`` are consumed as they come, so any number of them needs little memory. A chunk has
        1,000 items, with ``copy`` 10,000, and fewer if they have more than 4 MiB of data. Without
        ``connection`` each chunk is committed, and ``progress`` is called with the result so far.
        An invalid item is reported with its index; its chunk is not written, earlier chunks are,
        also in the caller's transaction.

        ``if_exists`` is as for ``schedule``: if items have ids, the default, "keep", makes it safe
        to repeat the call. ``copy`` uses COPY, which is faster, for new ids: one that is taken
        raises InstanceExists.
        """
        if items is None:
            task, items = same_task(task)
            if task is None:
                return BulkResult()
        name, known = self._known(task, "schedule_many")
        chosen: IfExists = if_exists or ("raise" if copy else "keep")
        checked_choice(chosen, name)
        if copy and chosen != "raise":
            raise ConfigurationError(
                f"schedule_many({name!r}): copy=True excludes if_exists; remove one of them"
            )
        size = size_of_chunks(chunk_size, copy, name)
        usual = when(at, delay, name)
        rank = weight(priority, known, f"schedule_many({name!r}")
        found = chunks(items, name, payload_for(task, name, known), usual, rank, size)
        store = self._make_store()
        # Hooks run in the caller's thread; SQLite in memory has one connection.
        is_alone = connection is None and not store.at_insert
        is_ahead = copy and is_alone and store.database.dialect_name == "postgresql"
        load = Load(
            name=name,
            joining=functools.partial(
                self._transactions.joining, connection, name, surely=True
            ),
            if_exists=chosen,
            copy=copy,
            thread=ThreadPoolExecutor(1, "slotwise-copy") if is_ahead else None,
            tell=functools.partial(self._tell_of, name)
            if connection is None
            else None,
            progress=progress,
        )
        return load.put_all(found)

    def _tell_of(self, name: str, chunk: Chunk, told: bool) -> bool:
        """Wake workers: at once for the first due rows, then now and then. Return whether they
        have been notified.
        """
        self._wake()
        whens = {id(row.when): row.when for row in chunk.rows}.values()
        if not any(self._is_soon(when) for when in whens):
            return told
        self._make_store().database.wake_ups.tell(
            name, within=GATHER if told else timedelta(0)
        )
        return True

    def _follow(
        self,
        task: object,
        data: object = None,
        *,
        id: str | None = None,
        at: datetime | None = None,
        delay: timedelta | str | None = None,
        priority: int | None = None,
        if_exists: IfExists = "keep",
        countdown: int = 0,
        **unknown: object,
    ) -> Follow:
        """Return the follow-up of ``ctx.then``, validated; the settlement writes it."""
        if unknown:
            known_ones = ", ".join(sorted(Options.__annotations__))
            raise TypeError(
                f"unexpected keyword argument {next(iter(unknown))!r}; there are {known_ones}"
            )
        task, data = called(task, data, "schedule")
        name, known = self._known(task)
        checked_choice(if_exists, name)
        checked_countdown(countdown, name)
        instance = next(fresh_ids()) if id is None else checked_id(id, name)
        due = when(at, delay, name)
        rank = weight(priority, known, f"schedule({name!r}")
        payload = payload_for(task, name, known).encode(data, name)
        return Follow(name, Wanted(instance, payload, due, rank, countdown), if_exists)

    def typed_data(self, task: Task, plain: object) -> object:
        """Convert plain values, as of JSON, to the data type of this task.

        They stay as they are if this process does not register the task. Raises InvalidPayload.
        """
        name = task_name(task)
        known = self._make_store().definitions.get(name)
        return plain if known is None else known.payload.given(plain, name)

    def leads_here(self, connection: object, where: str) -> bool | None:
        """Return whether this connection leads to slotwise's tables; None if that is unknown.

        It is unknown while slotwise's own database cannot be reached. ``connection`` is one that
        ``connection=`` of a call takes, in a transaction; ``where`` names it in errors.
        """
        installation = self._make_store().installation
        try:
            installation.join(connection, where)
        except ConfigurationError:
            return False
        except Exception as error:
            if lacks_tables(error):
                return False
            raise
        return None if installation.learn() is None else True

    def within(
        self,
        work: Callable[[Joinable], Result],
        *,
        connection: SyncConnection | None = None,
        where: str = "within",
    ) -> Result:
        """Call ``work`` with an executor of SQLAlchemy statements in the caller's transaction;
        without ``connection`` in one of our own, which is then committed.

        ``where`` names the call in errors. Raises as ``schedule``, and ConfigurationError if the
        connection commits every statement by itself.
        """
        store = self._make_store()
        with errors_of(store, where, is_own=connection is None):
            if connection is None:
                with store.surely() as own:
                    return work(own)
            joined = store.installation.join(connection, where)
            result = work(joined)
            if is_without_transaction(
                joined
            ):  # some drivers know it only after a write
                raise ConfigurationError(
                    f"{where}: the connection commits every statement by itself "
                    "(AUTOCOMMIT); pass one with a transaction"
                )
            return result

    @property
    def dialect(self) -> Dialect:
        """The port to the database, for statements in ``within``."""
        return self._make_store().dialect

    @staticmethod
    def wrong_id(id: object) -> str | None:
        """Return what is wrong with the id of a task, with the cure; None for a valid one."""
        return wrong_id(id)
