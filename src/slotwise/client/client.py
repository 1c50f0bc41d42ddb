"""Schedule one-time and recurring tasks from anywhere: a request, a script or a handler."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Self, Unpack, overload

from slotwise.client.arguments import (
    STATES,
    AnyTask,
    Item,
    Receipt,
    Task,
    checked_choice,
    checked_countdown,
    checked_id,
    existing_id,
    fresh_ids,
    instance_of,
    is_soon,
    page_place,
    payload_for,
    recurring,
    refuse_a_job,
    refuse_a_slip,
    taken,
    task_name,
    weight,
    when,
    wrong_id,
)
from slotwise.client.bulk import GATHER, Chunk, Load, chunks, size_of_chunks
from slotwise.client.calls import call
from slotwise.client.lost_replies import LostReplies
from slotwise.client.transactions import Transactions
from slotwise.errors import ConfigurationError
from slotwise.jobs.context import T, TaskOptions
from slotwise.jobs.definition import Definition
from slotwise.model.records import Follow, IfExists, Key, Wanted, When
from slotwise.model.vocabulary import ListedState, Outcome
from slotwise.schedules import Schedule
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.connect.database_errors import lacks_tables
from slotwise.store.connect.notifications import OPERATIONS
from slotwise.store.dialects.task_statements import Status
from slotwise.store.planning.instances import Instances
from slotwise.store.queue.queue import (
    AT_ONCE,
    BulkResult,
    Queue,
    TaskInfo,
    TaskResult,
    queue_of,
)

if TYPE_CHECKING:
    from slotwise.client.async_client import AsyncClient
    from slotwise.client.inspection import Inspection
    from slotwise.client.opening import Application
    from slotwise.client.operations import Operations
    from slotwise.jobs.context import Connection, TaskOf
    from slotwise.settings.settings import Settings
    from slotwise.store.slots.store import Store

PAGE = 100


class Options(TaskOptions, total=False):
    """The keywords of ``schedule``."""

    connection: Connection | None


class Commands:
    """The commands on tasks that have a row; see Client and AsyncClient."""

    def __init__(
        self, store: Callable[[], Store], wake: Callable[[], None] = lambda: None
    ) -> None:
        self._make_store = store
        self._wake = wake
        self._transactions = Transactions(store, wake)

    @call
    def reschedule(
        self,
        task: Task,
        id: str,
        *,
        at: datetime | None = None,
        delay: timedelta | str | None = None,
        priority: int | None = None,
        connection: Connection | None = None,
    ) -> Receipt:
        """Change the due time, and optionally the priority, of a waiting task: "scheduled". By
        default it is due now.

        "running": a worker holds it; the time applies to the next attempt, if there is one.
        "exists": it is dead and unchanged; retry it. "gone": it has ended, or never existed.
        """
        key = self._key(task, id, "reschedule")
        due = when(at, delay, task_name(task), "reschedule")
        rank = (
            None
            if priority is None
            else weight(priority, None, f"reschedule({key.task_name!r}")
        )
        word = key.task_name if self._is_soon(due) else None
        return self._transactions.done(
            connection, self._move(connection, key, due, rank, word)
        )

    @call
    def cancel(
        self, task: Task, id: str, *, connection: Connection | None = None
    ) -> Receipt:
        """Remove a task that waits, is paused or dead: "cancelled". If there is none: "gone".

        "running": its handler is asked to stop (``ctx.cancelled``), and no other attempt is made:
        it ends as cancelled, unless it succeeds.
        """
        key = self._key(task, id, "cancel")
        receipt = self._command(
            connection, key, lambda queue, own: queue.tasks.cancel(own, key)
        )
        return self._transactions.done(
            connection, receipt, OPERATIONS if receipt.status == "running" else None
        )

    @call
    def cancel_all(
        self,
        task: Task,
        *,
        state: str | None = None,
        connection: Connection | None = None,
    ) -> int:
        """Remove all tasks of this name that are not running, or those in one state; return how
        many.

        ``state`` is waiting, paused, blocked or dead. Running tasks stay; ``cancel`` asks one to
        stop. Uses transactions of 500 each; in the caller's transaction all at once.
        """
        name, _ = self._known(task, "cancel_all")
        count = 0
        last: str | None = None
        if state not in (None, *set(STATES) - {ListedState.RUNNING}):
            raise ConfigurationError(
                f"cancel_all({name!r}, state={state!r}): expected waiting, paused, blocked or dead"
            )
        while True:
            with self._transactions.joining(connection, name, surely=True) as (
                queue,
                own,
            ):
                some = queue.tasks.remove(own, name, state, last)
            if not some:
                return count
            count += len(some)
            last = some[-1]

    @call
    def retry(
        self,
        task: Task,
        ids: str | Iterable[str] | None = None,
        *,
        at: datetime | None = None,
        delay: timedelta | str | None = None,
        connection: Connection | None = None,
    ) -> builtins.list[Receipt]:
        """Run a dead task again, with all its attempts; or several, or, without ``ids``, all dead
        ones.

        Without ``at`` and ``delay``: now. A task that waits, for instance for its next attempt,
        also runs at this time, as after ``reschedule``. Returns a receipt for each id:
        "scheduled", "running" (if this attempt fails, the next one is at this time), or "gone".
        Each statement has up to 500 ids, and without ``connection`` a transaction of its own.
        """
        name, _ = self._known(task, "retry")
        due = when(at, delay, name, "retry")
        if isinstance(ids, str):
            ids = [ids]
        wanted = None if ids is None else [existing_id(one, name, "retry") for one in ids]
        dead = self._retry_dead(connection, name, wanted, due)
        found = []
        for id in dead if wanted is None else wanted:
            receipt = Receipt(task=name, id=id, status="scheduled")
            if id not in dead:
                receipt = self._move(connection, Key(name, id), due)
            found.append(receipt)
        return self._transactions.done(
            connection, found, name if self._is_soon(due) else None
        )

    def _retry_dead(
        self,
        connection: Connection | None,
        name: str,
        ids: builtins.list[str] | None,
        due: When,
    ) -> dict[str, None]:
        """Let the dead ones of these ids wait again, without ``ids`` all; return their ids, in
        order.
        """
        dead: dict[str, None] = {}
        first = 0
        while ids is None or first < len(ids):
            batch = None if ids is None else ids[first : first + AT_ONCE]
            first += AT_ONCE
            with self._transactions.joining(connection, name, surely=True) as (
                queue,
                own,
            ):
                some = queue.tasks.retry(own, name, batch, due)
            dead |= dict.fromkeys(some)
            if ids is None and len(some) < AT_ONCE:
                break
        return dead

    def _move(
        self,
        connection: Connection | None,
        key: Key,
        due: When,
        rank: int | None = None,
        word: str | None = None,
    ) -> Receipt:
        return self._command(
            connection,
            key,
            lambda queue, own: queue.tasks.move(own, key, due, rank),
            word,
        )

    @call
    def get(
        self, task: Task, id: str, *, connection: Connection | None = None
    ) -> TaskInfo | None:
        """One task with its data and state; None if it has ended, or never existed."""
        key = self._key(task, id, "get")
        with self._transactions.joining(connection, key.task_name) as (queue, own):
            return queue.reader.find(own, key)

    @call
    def list(
        self,
        task: Task | None = None,
        *,
        state: str | None = None,
        after: TaskInfo | str | None = None,
        limit: int = PAGE,
        connection: Connection | None = None,
    ) -> list[TaskInfo]:
        """One page of tasks by name and id, without their data: of all tasks or of one, in any
        state or in one.

        ``state`` is waiting, running, paused, blocked or dead. ``after`` is the last line of the
        previous page, or its id if ``task`` is given: no task is missed or listed twice, whatever
        happens in between.
        """
        name = None if task is None else self._known(task, "list")[0]
        place = page_place(name, after, state, limit)
        with self._transactions.joining(connection, name or "") as (queue, own):
            return queue.reader.page(own, name=name, state=state, after=place, size=limit)

    @call
    def history(
        self, task: Task, id: str, *, connection: Connection | None = None
    ) -> builtins.list[TaskResult]:
        """The recorded ends of tasks under this id, the newest first; see ``record`` and
        ``result_retention``.
        """
        key = self._key(task, id, "history")
        with self._transactions.joining(connection, key.task_name) as (queue, own):
            return queue.reader.ends(own, key)

    @call
    def result(
        self, task: Task, id: str, *, connection: Connection | None = None
    ) -> TaskResult | None:
        """The newest successful end under this id, with its ``result``; None if none is stored."""
        ends = self.history(task, id, connection=connection)
        return next((end for end in ends if end.outcome == Outcome.SUCCEEDED), None)

    @call
    def schedule_recurring(
        self,
        task: AnyTask,
        id: str,
        schedule: Schedule | str,
        data: object = None,
        *,
        priority: int | None = None,
        connection: Connection | None = None,
    ) -> datetime | None:
        """Create or change the recurring instance ``id`` of ``task``; return its next slot, None
        if there is none.

        Slots, catch-up, overlap and ledger belong to the instance; the policies are the task's. A
        changed schedule applies as after a deploy. ``schedule`` is a Schedule or its text form; an
        ``H`` in it is derived from task and id. With ``connection`` the row joins the caller's
        transaction; keep that short, because settlements of the instance wait for it.

        The registry must have the task, because policies such as ``runs_on`` and ``spread`` come
        from the code.

        Raises UnknownTask; InvalidSchedule, also for a calendar that is not in the database;
        InstanceExists if a one-time task has this id; and what ``schedule`` raises for task, id,
        data and connection.
        """
        store = self._make_store()
        new = instance_of(store.definitions, task, id, schedule, data, priority)
        name = new.task
        with self._transactions.beside(connection, name) as own:
            slot = Instances(store).put(own, new)
            queue_of(store.dialect, self._transactions.horizon).rows.notify(own, name)
        return self._transactions.done(connection, slot)

    @call
    def unschedule_recurring(
        self, task: AnyTask, id: str, *, connection: Connection | None = None
    ) -> bool:
        """Delete the recurring instance ``id`` of ``task``; False if there is none. A running
        handler finishes.

        Its history stays, so an instance that comes back starts no slot twice. With
        ``connection``, in the caller's transaction. Raises what ``schedule_recurring`` raises for
        task, id and connection.
        """
        name, instance = recurring(task, id)
        store = self._make_store()
        with self._transactions.beside(connection, name) as own:
            return Instances(store).remove(own, name, instance)

    def _key(self, task: Task, id: str, call: str = "arrive") -> Key:
        name, _ = self._known(task, call)
        check = checked_id if call == "arrive" else existing_id
        return Key(name, check(id, name, call))

    def _known(self, task: Task, call: str = "schedule") -> tuple[str, Definition | None]:
        """Return the task's name, and its definition if known here. Raise UnknownTask for a typing
        mistake.
        """
        name = task_name(task)
        definitions = self._make_store().definitions
        if (known := definitions.get(name)) is not None:
            refuse_a_job(name, known.is_job)
        elif isinstance(task, str):
            refuse_a_slip(
                name,
                (one for one, found in definitions.items() if not found.is_job),
                call,
            )
        return name, known

    def _is_soon(self, due: When) -> bool:
        return is_soon(due, self._transactions.horizon)

    def _command(
        self,
        connection: Connection | None,
        key: Key,
        command: Callable[[Queue, Joinable], Status],
        word: str | None = None,
    ) -> Receipt:
        with self._transactions.joining(connection, key.task_name, word, surely=True) as (
            queue,
            own,
        ):
            status = command(queue, own)
        return Receipt(task=key.task_name, id=key.task_instance, status=status)


class Client(Commands):
    """Commands on one-time tasks; works without a worker in this process.

    Each takes ``connection``: a SQLAlchemy Connection or Session, a psycopg connection, or
    ``django.db.connection``, whose transaction it joins. Without one it has a transaction of its
    own. A task is its class, an instance, a function under ``@task``, or a name. All calls wait
    for the database; ``aio`` has the same to be awaited. Raises InvalidJob for an invalid task,
    InvalidPayload for data of another type than the task's, ConfigurationError for any other
    invalid argument.
    """

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
        from slotwise.client.operations import Operations  # late: most clients give none

        return Operations(self._make_store, self._wake)

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
        self, task: TaskOf[None], data: None = None, **options: Unpack[Options]
    ) -> Receipt: ...
    @overload
    def schedule(
        self, task: TaskOf[T], data: T, **options: Unpack[Options]
    ) -> Receipt: ...
    def schedule(
        self,
        task: TaskOf[T],
        data: T | None = None,
        *,
        connection: Connection | None = None,
        **options: Unpack[TaskOptions],
    ) -> Receipt:
        """Schedule ``task`` with ``data``; the receipt has its id.

        ``at`` (aware) or ``delay`` (``timedelta`` or ``"10s"``) set the due time, by the
        database's clock; without them it is due now. ``id`` has at most 250 characters; the
        default is a new one. If a task with this id exists, waiting, dead or running: "keep"
        leaves it unchanged (the receipt says "exists" or "running"), "raise" raises
        InstanceExists, "replace" replaces it unless it runs, "reschedule" gives it this time and
        priority and keeps its data. ``countdown``: the task is blocked until this many handlers
        have called ``ctx.count_down`` with its id.
        """
        name, row, if_exists = self._follow(task, data, **options)
        word = name if self._is_soon(row.when) and not row.waits_for else None
        key = Key(name, row.instance)
        has_id = options.get("id") is not None
        surely = connection is None and has_id
        receipt = Receipt(task=name, id=row.instance, status="scheduled")
        if surely and self._lost_replies.was_scheduled(key):
            return self._transactions.done(connection, receipt)
        is_single = connection is None and not has_id
        with (
            self._lost_replies.noted(key, is_single=is_single),
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

    def schedule_many(
        self,
        task: TaskOf[T],
        items: Iterable[T | Item[T]],
        *,
        at: datetime | None = None,
        delay: timedelta | str | None = None,
        priority: int | None = None,
        if_exists: IfExists | None = None,
        chunk_size: int | None = None,
        copy: bool = False,
        progress: Callable[[BulkResult], object] = lambda tally: None,
        connection: Connection | None = None,
    ) -> BulkResult:
        """Schedule a task for each of ``items`` (its data, or an Item), ``chunk_size`` of them per
        statement.

        ``items`` are consumed as they come, so any number of them needs little memory. A chunk has
        1,000 items, with ``copy`` 10,000, and fewer if they have more than 4 MiB of data. Without
        ``connection`` each chunk is committed, and ``progress`` is called with the result so far.
        An invalid item is reported with its index; its chunk is not written, earlier chunks are,
        also in the caller's transaction.

        ``if_exists`` is as for ``schedule``: if items have ids, the default, "keep", makes it safe
        to repeat the call. ``copy`` uses COPY, which is faster, for new ids: one that is taken
        raises InstanceExists.
        """
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
            tell=functools.partial(self._tell_of, name) if connection is None else None,
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
        task: TaskOf[T],
        data: T | None = None,
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

    @staticmethod
    def wrong_id(id: object) -> str | None:
        """Return what is wrong with the id of a task, with the cure; None for a valid one."""
        return wrong_id(id)
