"""Schedule tasks from anywhere, one-time and recurring ones: from a request, a script or a
handler; also awaited.
"""

from __future__ import annotations

import asyncio
import builtins
import functools
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import (
    TYPE_CHECKING,
    Concatenate,
    Generic,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    overload,
)

import sqlalchemy as sa

from slotwise.client.arguments import (
    AnyTask,
    Item,
    Receipt,
    Task,
    checked_choice,
    checked_id,
    fresh_ids,
    is_soon,
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
from slotwise.client.bulk import CHUNK, COPY_CHUNK, GATHER, Chunk, Load, chunks
from slotwise.errors import (
    CommitUnknown,
    ConfigurationError,
    DatabaseProblem,
    DatabaseUnreachable,
    SchemaMissing,
    UnknownTask,
)
from slotwise.jobs.context import T, TaskOptions
from slotwise.jobs.definition import Definition, check_schedule
from slotwise.model.records import Follow, IfExists, Key, Wanted, When, is_whole
from slotwise.model.vocabulary import ListedState, Outcome
from slotwise.schedules import Schedule, parse_schedule
from slotwise.store.connect.caller_transaction import (
    Joinable,
    Result,
    call_within,
    sqlalchemy_connection,
)
from slotwise.store.connect.database import ANSWER, was_committed
from slotwise.store.connect.database_errors import in_its_letters, lacks_tables
from slotwise.store.connect.notifications import ORDERS
from slotwise.store.dialects.task_statements import Status
from slotwise.store.planning.instances import Instance, Instances
from slotwise.store.queue.queue import (
    AT_ONCE,
    BulkResult,
    Queue,
    TaskInfo,
    TaskResult,
    queue_of,
)

if TYPE_CHECKING:
    from slotwise.client.inspection import Inspection
    from slotwise.client.opening import Application
    from slotwise.client.operations import Operations
    from slotwise.jobs.context import Connection, TaskOf
    from slotwise.settings.settings import Settings
    from slotwise.store.slots.store import Store

Given = ParamSpec("Given")
Inner = TypeVar("Inner")

#: Default size of a page of ``list``.
PAGE = 100

#: The largest value that the column can store.
MOST_ARRIVALS = 2_147_483_647

STATES = (
    ListedState.WAITING,
    ListedState.RUNNING,
    ListedState.PAUSED,
    ListedState.BLOCKED,
    ListedState.DEAD,
)


class Options(TaskOptions, total=False):
    """The keywords of ``schedule``."""

    connection: Connection | None


class Client:
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
        self._make_store = store
        self._wake = wake
        #: Tasks whose insert may have been committed although its reply was lost, with the id of
        #: the transaction.
        self._unknown: dict[Key, str | None] = {}

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
        )  # late: most workers and clients give none

        return Operations(self._make_store, self._wake)

    @property
    def inspect(self) -> Inspection:
        """Reads jobs, slots, tasks and workers for people and dashboards; changes nothing."""
        from slotwise.client.inspection import (
            Inspection,  # late: most workers are not asked
        )

        return Inspection(self._make_store)

    @property
    def aio(self) -> AsyncClient:
        """The same commands for asyncio applications."""
        return AsyncClient(self)

    @overload
    def schedule(
        self, task: TaskOf[None], data: None = None, **options: Unpack[Options]
    ) -> Receipt: ...
    @overload
    def schedule(self, task: TaskOf[T], data: T, **options: Unpack[Options]) -> Receipt: ...
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
        word = name if is_soon(row.when, self._horizon) and not row.waits_for else None
        key = Key(name, row.instance)
        surely = connection is None and options.get("id") is not None
        status: Status = "scheduled"
        try:
            if surely and key in self._unknown and self._was_scheduled(key):
                return self._done(
                    connection, Receipt(task=name, id=row.instance, status=status)
                )
            with self._joining(connection, name, word, surely=surely) as (queue, own):
                status = queue.put(own, name, row, if_exists)
                if if_exists == "raise" and status != "scheduled":
                    found = queue.reader.find(own, key)
                    raise taken(name, row.instance, found.state if found else None)
        except CommitUnknown as error:
            self._unknown[key], error.id = error.transaction, row.instance
            raise
        except DatabaseUnreachable as error:
            if (
                connection is not None
                or surely
                or not getattr(error.__cause__, "connection_invalidated", False)
            ):
                raise
            self._unknown[key] = (
                None  # a statement by itself: only the row can show that it was committed
            )
            self._was_scheduled(key)
        return self._done(connection, Receipt(task=name, id=row.instance, status=status))

    def _was_scheduled(self, key: Key) -> bool:
        """Return whether a call of this client whose reply was lost has scheduled the task; raise
        CommitUnknown.
        """
        store = self._make_store()
        transaction = self._unknown[key]
        if transaction is not None:
            with _errors(store, key.task_name, is_own=True):
                found = was_committed(
                    store.database, store.dialect.committed, transaction, ANSWER
                )
            del self._unknown[key]
            return found
        for pause in (0.0, 0.1, 0.3, 0.6):  # the server may still be busy with it
            time.sleep(pause)
            with suppress(DatabaseProblem):
                if self.get(key.task_name, key.task_instance) is not None:
                    del self._unknown[key]
                    return True
        unknown = CommitUnknown(
            f"the reply to schedule({key.task_name!r}) was lost: the task "
            f"{key.task_instance!r} was not scheduled, or "
            "it has run already; with an id of yours, the database can tell"
        )
        unknown.id = key.task_instance
        raise unknown

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
        size = (COPY_CHUNK if copy else CHUNK) if chunk_size is None else chunk_size
        if not is_whole(size, 1, COPY_CHUNK):
            raise ConfigurationError(
                f"schedule_many({name!r}, chunk_size={chunk_size!r}): expected 1 to 10,000"
            )
        usual = when(at, delay, name)
        rank = weight(priority, known, f"schedule_many({name!r}")
        tell = functools.partial(self._tell_of, name) if connection is None else None
        joining = functools.partial(self._joining, connection, name, surely=True)
        store = self._make_store()
        # Hooks run in the caller's thread; SQLite in memory has one connection.
        is_ahead = (
            copy
            and connection is None
            and not store.at_insert
            and store.database.dialect_name == "postgresql"
        )
        thread = ThreadPoolExecutor(1, "slotwise-copy") if is_ahead else None
        load = Load(name, joining, chosen, copy, thread, tell, progress)
        return load.put_all(
            chunks(items, name, payload_for(task, name, known), usual, rank, size)
        )

    def _tell_of(self, name: str, chunk: Chunk, told: bool) -> bool:
        """Wake workers: at once for the first due rows, then now and then. Return whether they
        have been notified.
        """
        self._wake()
        whens = {id(row.when): row.when for row in chunk.rows}.values()
        if not any(is_soon(when, self._horizon) for when in whens):
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
        if type(countdown) is not int or not 0 <= countdown <= MOST_ARRIVALS:
            raise ConfigurationError(
                f"schedule({name!r}, countdown={countdown!r}): a whole number, 0 "
                f"to {MOST_ARRIVALS:,}"
            )
        instance = next(fresh_ids()) if id is None else checked_id(id, name)
        due = when(at, delay, name)
        rank = weight(priority, known, f"schedule({name!r}")
        return Follow(
            name,
            Wanted(
                instance,
                payload_for(task, name, known).encode(data, name),
                due,
                rank,
                countdown,
            ),
            if_exists,
        )

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

    def _key(self, task: Task, id: str, call: str = "arrive") -> Key:
        name, _ = self._known(task, call)
        return Key(name, checked_id(id, name, call))

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
                name, (one for one, found in definitions.items() if not found.is_job), call
            )
        return name, known

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
        word = key.task_name if is_soon(due, self._horizon) else None
        return self._done(connection, self._move(connection, key, due, rank, word))

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
        return self._done(
            connection, receipt, ORDERS if receipt.status == "running" else None
        )

    def cancel_all(
        self, task: Task, *, state: str | None = None, connection: Connection | None = None
    ) -> int:
        """Remove all tasks of this name that are not running, or those in one state; return how
        many.

        ``state`` is waiting, paused, blocked or dead. Running tasks stay; ``cancel`` asks one to
        stop. Uses transactions of 500 each; in the caller's transaction all at once.
        """
        (name, _), count, last = self._known(task, "cancel_all"), 0, ""
        if state not in (None, *set(STATES) - {ListedState.RUNNING}):
            raise ConfigurationError(
                f"cancel_all({name!r}, state={state!r}): expected waiting, paused, blocked or dead"
            )
        while True:
            with self._joining(connection, name, surely=True) as (queue, own):
                some = queue.tasks.remove(own, name, state, last)
            if not some:
                return count
            count = count + len(some)
            last = some[-1]

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
        given = [ids] if isinstance(ids, str) else ids
        asked = None if given is None else [checked_id(one, name, "retry") for one in given]
        batches: builtins.list[builtins.list[str] | None] = [None]
        if asked is not None:
            batches = [asked[at : at + AT_ONCE] for at in range(0, len(asked), AT_ONCE)]
        dead: dict[str, None] = {}
        for batch in batches:
            with self._joining(connection, name, surely=True) as (queue, own):
                some = queue.tasks.retry(own, name, batch, due)
            dead |= dict.fromkeys(some)
            if batch is None and len(some) == AT_ONCE:
                batches.append(None)  # there may be more dead ones
        found = [
            Receipt(task=name, id=id, status="scheduled")
            if id in dead
            else self._move(connection, Key(name, id), due)
            for id in (dead if asked is None else asked)
        ]
        return self._done(connection, found, name if is_soon(due, self._horizon) else None)

    def _move(
        self,
        connection: Connection | None,
        key: Key,
        due: When,
        rank: int | None = None,
        word: str | None = None,
    ) -> Receipt:
        return self._command(
            connection, key, lambda queue, own: queue.tasks.move(own, key, due, rank), word
        )

    def get(
        self, task: Task, id: str, *, connection: Connection | None = None
    ) -> TaskInfo | None:
        """One task with its data and state; None if it has ended, or never existed."""
        key = self._key(task, id, "get")
        with self._joining(connection, key.task_name) as (queue, own):
            return queue.reader.find(own, key)

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
        if state is not None and state not in STATES:
            raise ConfigurationError(f"list(state={state!r}): expected {', '.join(STATES)}")
        if not is_whole(limit, 1):
            raise ConfigurationError(
                f"list(limit={limit!r}): expected a whole number, 1 or more"
            )
        if isinstance(after, str) and task is None:
            raise ConfigurationError(
                f"list(after={after!r:.60}): ids are a task's; name the task, or pass a TaskInfo"
            )
        place = (
            Key(after.task, after.id)
            if isinstance(after, TaskInfo)
            else Key(name or "", after)
            if after
            else None
        )
        with self._joining(connection, name or "") as (queue, own):
            return queue.reader.page(own, name=name, state=state, after=place, size=limit)

    def history(
        self, task: Task, id: str, *, connection: Connection | None = None
    ) -> builtins.list[TaskResult]:
        """The recorded ends of tasks under this id, the newest first; see ``record`` and
        ``result_retention``.
        """
        key = self._key(task, id, "history")
        with self._joining(connection, key.task_name) as (queue, own):
            return queue.reader.ends(own, key)

    def result(
        self, task: Task, id: str, *, connection: Connection | None = None
    ) -> TaskResult | None:
        """The newest successful end under this id, with its ``result``; None if none is stored."""
        ends = self.history(task, id, connection=connection)
        return next((end for end in ends if end.outcome == Outcome.SUCCEEDED), None)

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
        name, instance = recurring(task, id)
        timing = parse_schedule(schedule) if isinstance(schedule, str) else schedule
        if not isinstance(timing, Schedule):
            raise ConfigurationError(
                f"schedule_recurring({name!r}): {timing!r:.60} is not a schedule; write Every('5m')"
            )
        store = self._make_store()
        if (known := store.definitions.get(name)) is None:
            near = get_close_matches(name, store.definitions, n=1)
            cure = (
                f"did you mean {near[0]!r}?"
                if near
                else "register it here, too: its policies come from the code"
            )
            raise UnknownTask(
                f"schedule_recurring({name!r}): the registry has no job or task of "
                f"this name; {cure}"
            )
        check_schedule(timing, known, f"schedule_recurring({name!r}, id={instance!r})")
        new = Instance(
            task=name,
            id=instance,
            schedule=timing,
            data=known.payload.encode(data, name),
            priority=weight(priority, known, f"schedule_recurring({name!r}"),
        )
        with self._beside(connection, store, name) as own:
            slot = Instances(store).put(own, new)
            queue_of(store.dialect, self._horizon).rows.notify(own, name)
        return self._done(connection, slot)

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
        with self._beside(connection, store, name) as own:
            return Instances(store).remove(own, name, instance)

    def _command(
        self,
        connection: Connection | None,
        key: Key,
        command: Callable[[Queue, Joinable], Status],
        word: str | None = None,
    ) -> Receipt:
        with self._joining(connection, key.task_name, word, surely=True) as (queue, own):
            status = command(queue, own)
        return Receipt(task=key.task_name, id=key.task_instance, status=status)

    @contextmanager
    def _joining(
        self,
        connection: Connection | None,
        name: str,
        word: str | None = None,
        *,
        surely: bool = False,
    ) -> Iterator[tuple[Queue, Joinable]]:
        """Yield the caller's transaction; else our own for one statement, which is followed by the
        notification.

        ``surely``: if the reply to our commit is lost, the database is asked. That costs three
        more round trips.
        """
        store = self._make_store()
        with _errors(store, name, is_own=connection is None):
            if connection is not None:
                queue = queue_of(store.dialect, self._horizon, store.at_insert)
                yield queue, store.installation.join(connection, name)
                return
            is_asked = surely and store.database.dialect_name == "postgresql"
            if store.at_insert or is_asked or not store.dialect.is_one_statement:
                # Hooks and rows commit together; then the statements notify workers.
                wake = self._horizon if store.at_insert else None
                with store.surely() as own:
                    yield queue_of(store.dialect, wake, store.at_insert), own
                if word is not None and not store.at_insert:
                    store.database.wake_ups.tell(word)
                return
            with store.database.telling(word) as own:
                yield queue_of(store.dialect), own

    @contextmanager
    def _beside(
        self, connection: Connection | None, store: Store, name: str
    ) -> Iterator[sa.Connection]:
        """Yield a SQLAlchemy connection: the caller's, or one of our own."""
        with _errors(store, name, is_own=connection is None):
            if connection is None:
                with store.surely() as own:
                    yield own
                return
            outer = sqlalchemy_connection(connection)
            store.installation.join(outer, name)
            yield outer

    @property
    def _horizon(self) -> timedelta | None:
        """Workers are notified of tasks that are due within this time; None: of none."""
        settings = self._make_store().database.settings
        return settings.poll_interval if settings.wake_up else None

    def _done(
        self, connection: Connection | None, result: Result, word: str | None = None
    ) -> Result:
        """Wake workers after a transaction of our own; ``word`` notifies those in other
        processes.
        """
        if connection is None:
            self._wake()
            if word is not None:
                self._make_store().database.wake_ups.tell(word)
        return result


class Awaited(Generic[Inner]):
    """The commands of ``inner``, awaited."""

    def __init__(self, inner: Inner) -> None:
        self._inner = inner

    async def _run(
        self, command: Callable[..., Result], *given: object, **named: object
    ) -> Result:
        own = self._inner
        connection = named.get("connection")
        if connection is None or not isinstance(own, Client):
            return await asyncio.to_thread(command, own, *given, **named)
        if (installation := own._make_store().installation).is_unknown:
            await asyncio.to_thread(
                installation.learn
            )  # else the command would read the id in the event loop
        return await call_within(
            connection, lambda inner: command(own, *given, **named | {"connection": inner})
        )


def awaited(
    command: Callable[Concatenate[Inner, Given], Result],
) -> Callable[Concatenate[Awaited[Inner], Given], Coroutine[None, None, Result]]:
    """Return the same command as a coroutine function."""

    @functools.wraps(command)
    async def call(
        self: Awaited[Inner], /, *given: Given.args, **named: Given.kwargs
    ) -> Result:
        return await self._run(command, *given, **named)

    return call


class AsyncClient(Awaited[Client]):
    """The commands of Client with the same arguments, awaited.

    ``connection``: SQLAlchemy's AsyncConnection or AsyncSession, or psycopg's AsyncConnection; for
    recurring instances one of SQLAlchemy. Without one, a thread waits for the database, and
    ``items`` and ``progress`` of ``schedule_many`` are used on that thread. It finishes even if
    the caller is cancelled.
    """

    @overload
    async def schedule(
        self, task: TaskOf[None], data: None = None, **options: Unpack[Options]
    ) -> Receipt: ...
    @overload
    async def schedule(
        self, task: TaskOf[T], data: T, **options: Unpack[Options]
    ) -> Receipt: ...
    async def schedule(
        self, task: TaskOf[T], data: T | None = None, **options: Unpack[Options]
    ) -> Receipt:
        """As ``Client.schedule``."""
        return await self._run(Client.schedule, task, data, **options)

    schedule_many = awaited(Client.schedule_many)
    reschedule = awaited(Client.reschedule)
    cancel = awaited(Client.cancel)
    cancel_all = awaited(Client.cancel_all)
    retry = awaited(Client.retry)
    get = awaited(Client.get)
    list = awaited(Client.list)
    schedule_recurring = awaited(Client.schedule_recurring)
    unschedule_recurring = awaited(Client.unschedule_recurring)
    history = awaited(Client.history)
    result = awaited(Client.result)


@contextmanager
def _errors(store: Store, name: str, *, is_own: bool) -> Iterator[None]:
    """Raise SchemaMissing without our tables, ConfigurationError for characters that the database
    cannot store.

    Other driver errors become DatabaseProblem in a transaction of our own, and stay as they are in
    the caller's.
    """
    try:
        yield
    except Exception as error:
        with (
            store.database.in_words() if is_own else nullcontext(),
            in_its_letters(f"task {name!r}"),
        ):
            if not lacks_tables(error):
                raise
            prefix = store.tables.prefix
            raise SchemaMissing(
                f"the tables {prefix}* are missing in this database; name another, "
                "or run: slotwise db upgrade"
            ) from error
