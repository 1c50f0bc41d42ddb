"""What a client does with waiting tasks and with recurring instances, apart from inserts."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Generic, TypedDict, TypeVar

from slotwise.client.arguments import (
    AnyTask,
    Receipt,
    Task,
    called,
    checked_id,
    existing_id,
    instance_of,
    is_soon,
    name_of,
    page_place,
    recurring,
    refuse_a_job,
    refuse_a_slip,
    task_name,
    weight,
    when,
)
from slotwise.client.calls import call
from slotwise.client.scoped_items import RecurringItem, checked_label, scoped_instances
from slotwise.client.transactions import Transactions, repeated
from slotwise.errors import ConfigurationError
from slotwise.jobs.context import T, TaskOptions
from slotwise.jobs.definition import Definition
from slotwise.jobs.functions import Call
from slotwise.model.records import IfExists, Key, When
from slotwise.model.vocabulary import TASK_STATES, ListedState, Outcome
from slotwise.schedules import Schedule
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.connect.notifications import OPERATIONS
from slotwise.store.dialects.task_statements import Status
from slotwise.store.planning.instances import Instances
from slotwise.store.planning.scopes import Synchronisation, SyncReport
from slotwise.store.queue.queue import (
    BulkResult,
    Queue,
    TaskInfo,
    TaskResult,
    queue_of,
)
from slotwise.store.queue.task_commands import AT_ONCE
from slotwise.store.queue.task_filter import TaskFilter

if TYPE_CHECKING:
    import sqlalchemy as sa

    from slotwise.jobs.context import Connection, TaskOf
    from slotwise.store.slots.store import Store

PAGE = 100

#: What a client joins: a synchronous connection, or an asynchronous one.
C = TypeVar("C", bound="Connection")


class Options(TaskOptions, Generic[C], total=False):
    """The keywords of ``schedule``."""

    connection: C | None


class BulkOptions(TypedDict, Generic[C], total=False):
    """The keywords of ``schedule_many``."""

    at: datetime | None
    delay: timedelta | str | None
    priority: int | None
    if_exists: IfExists | None
    chunk_size: int | None
    copy: bool
    progress: Callable[[BulkResult], object]
    connection: C | None


class Commands(Generic[C]):
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
        connection: C | None = None,
    ) -> Receipt:
        """Change the due time, and optionally the priority, of a waiting task: "scheduled". By
        default it is due now.

        "running": a worker holds it; the time applies to the next attempt, if there is one.
        "exists": it is dead and unchanged; retry it. "gone": it has ended, or never existed.
        """
        key = self._home(self._key(task, id, "reschedule"), connection)
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
    def cancel(self, task: Task, id: str, *, connection: C | None = None) -> Receipt:
        """Remove a task that waits, is paused or dead: "cancelled". If there is none: "gone".

        "running": its handler is asked to stop (``ctx.cancelled``), and no other attempt is made:
        it ends as cancelled, unless it succeeds.
        """
        key = self._home(self._key(task, id, "cancel"), connection)
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
        connection: C | None = None,
    ) -> int:
        """Remove all tasks of this name that are not running, or those in one state; return how
        many.

        ``state`` is waiting, paused, blocked or dead. Running tasks stay; ``cancel`` asks one to
        stop. Uses transactions of 500 each; in the caller's transaction all at once.
        """
        name, _ = self._known(task, "cancel_all")
        if state not in (None, *set(TASK_STATES) - {ListedState.RUNNING}):
            raise ConfigurationError(
                f"cancel_all({name!r}, state={state!r}): expected waiting, paused, blocked or dead"
            )
        return sum(
            self._cancel_all(one, state, connection)
            for one in self._make_store().names_of(name)
        )

    def _cancel_all(self, name: str, state: str | None, connection: C | None) -> int:
        count = 0
        last: str | None = None

        def remove(queue: Queue, own: Joinable) -> builtins.list[str]:
            return queue.tasks.remove(own, name, state, last)

        while some := self._transactions.carry_out(connection, name, remove):
            count += len(some)
            last = some[-1]
        return count

    @call
    def retry(
        self,
        task: Task,
        ids: str | Iterable[str] | None = None,
        *,
        at: datetime | None = None,
        delay: timedelta | str | None = None,
        connection: C | None = None,
    ) -> builtins.list[Receipt]:
        """Run a dead task again, with all its attempts; or several, or, without ``ids``, all dead
        ones.

        Without ``at`` and ``delay``: now. A task that waits, for instance for its next attempt,
        also runs at this time, as after ``reschedule``. Returns a receipt for each id:
        "scheduled", "running" (if this attempt fails, the next one is at this time), or "gone".
        Each statement has up to 500 ids, and without ``connection`` its own transaction.
        """
        name, _ = self._known(task, "retry")
        due = when(at, delay, name, "retry")
        if isinstance(ids, str):
            ids = [ids]
        wanted = (
            None if ids is None else [existing_id(one, name, "retry") for one in ids]
        )
        dead: dict[str, None] = {}
        for one in self._make_store().names_of(name):
            dead |= self._retry_dead(connection, one, wanted, due)
        found = []
        for id in dead if wanted is None else wanted:
            receipt = Receipt(task=name, id=id, status="scheduled")
            if id not in dead:
                key = self._home(self._key(task, id, "retry"), connection)
                receipt = self._move(connection, key, due)
            found.append(receipt)
        return self._transactions.done(
            connection, found, name if self._is_soon(due) else None
        )

    def _retry_dead(
        self,
        connection: C | None,
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
            some = self._transactions.carry_out(
                connection,
                name,
                lambda queue, own: queue.tasks.retry(own, name, batch, due),  # noqa: B023
            )
            dead |= dict.fromkeys(some)
            if ids is None and len(some) < AT_ONCE:
                break
        return dead

    def _move(
        self,
        connection: C | None,
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
        self, task: Task, id: str, *, connection: C | None = None
    ) -> TaskInfo | None:
        """One task with its data and state; None if it has ended, or never existed."""
        key = self._home(self._key(task, id, "get"), connection)
        with self._transactions.joining(connection, key.task_name, reads=True) as (
            queue,
            own,
        ):
            return queue.reader.find(own, key)

    @call
    def list(
        self,
        task: Task | None = None,
        *,
        state: str | None = None,
        where: TaskFilter | None = None,
        after: TaskInfo | str | None = None,
        limit: int = PAGE,
        connection: C | None = None,
    ) -> list[TaskInfo]:
        """One page of tasks by name and id, without their data: of all tasks or of one, in any
        state or in one, and ``where`` a filter matches.

        ``state`` is waiting, running, paused, blocked or dead. ``after`` is the last line of the
        previous page, or its id if ``task`` is given: no task is missed or listed twice, whatever
        happens in between.
        """
        name = None if task is None else self._known(task, "list")[0]
        place = page_place(name, after, state, limit)
        with self._transactions.joining(connection, name or "", reads=True) as (
            queue,
            own,
        ):
            found: builtins.list[TaskInfo] = []
            for one, begin in self._places(name, place):
                left = limit - len(found)
                found += queue.reader.page(
                    own, name=one, state=state, after=begin, size=left, where=where
                )
                if len(found) >= limit:
                    break
            return found

    @call
    def history(
        self, task: Task, id: str, *, connection: C | None = None
    ) -> builtins.list[TaskResult]:
        """The recorded ends of tasks under this id, the newest first; see ``record`` and
        ``result_retention``.
        """
        key = self._key(task, id, "history")
        with self._transactions.joining(connection, key.task_name, reads=True) as (
            queue,
            own,
        ):
            ends = [
                end
                for name in self._make_store().names_of(key.task_name)
                for end in queue.reader.ends(own, Key(name, key.task_instance))
            ]
        return sorted(ends, key=lambda end: end.finished, reverse=True)

    @call
    def result(
        self, task: Task, id: str, *, connection: C | None = None
    ) -> TaskResult | None:
        """The newest successful end under this id, with its ``result``; None if none is stored."""
        ends = self.history(task, id, connection=connection)
        return next((end for end in ends if end.outcome == Outcome.SUCCEEDED), None)

    @call
    @repeated
    def schedule_recurring(
        self,
        task: AnyTask | Call,
        id: str,
        schedule: Schedule | str,
        data: object = None,
        *,
        priority: int | None = None,
        connection: C | None = None,
    ) -> datetime | None:
        """Create or change the recurring instance ``id`` of ``task``; return its next slot, None
        if there is none. A call has the data with it: ``schedule_recurring(report.call(customer=7),
        "7", "@daily")``.

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
        subject, given = called(task, data, "schedule_recurring")
        new = instance_of(store.definitions, subject, id, schedule, given, priority)
        name = new.task
        with self._transactions.beside(connection, name) as own:
            slot = Instances(store).put(own, new)
            queue_of(store.dialect, self._transactions.horizon).rows.notify(own, name)
        return self._transactions.done(connection, slot)

    @call
    def sync_schedules(
        self,
        task: TaskOf[T],
        items: Iterable[RecurringItem[T]],
        *,
        scope: str,
        force: bool = False,
        dry_run: bool = False,
        connection: C | None = None,
    ) -> SyncReport:
        """Bring the recurring instances of ``task`` in this ``scope`` in line with ``items``: add,
        change and remove what differs; report the ids.

        All items are read and checked first, so an error in one changes nothing. Instances of
        other scopes, and those of ``schedule_recurring``, are not removed; an item takes the
        latter into the scope. If more than a fifth of the scope would be removed, ``force`` is
        needed, and without it nothing is changed. Without ``connection``, rows are written in
        transactions of 1,000 instances; after a failure, call it again, and it does the rest. With
        ``connection`` all is one transaction.

        Raises what ``schedule_recurring`` raises, with the index of the item; InstanceExists for
        an id of another scope; ConfigurationError without ``force``; SyncSuperseded if another
        synchronisation of this scope begins meanwhile, which then does the rest.
        """
        name = name_of(task)
        store = self._make_store()
        checked_label("scope", scope)
        wanted = scoped_instances(store.definitions, task, items, name)
        sync = Synchronisation(store, name, scope, wanted)
        beside = partial(self._transactions.beside, connection, name)
        with beside() as own:
            if not dry_run:
                sync.begin(own)
            sync.compare(own)
            if dry_run:
                return sync.report
            if not force:
                sync.refuse_large_removal()
        self._synchronise(sync, name, beside)
        return self._transactions.done(connection, sync.report)

    def _synchronise(
        self,
        sync: Synchronisation,
        name: str,
        beside: Callable[[], AbstractContextManager[sa.Connection]],
    ) -> None:
        """Write the chunks of a synchronisation that has been compared."""
        tasks = queue_of(self._make_store().dialect, self._transactions.horizon).rows

        for is_removal, ids in sync.chunks():
            with beside() as own:
                sync.write(own, ids, is_removal=is_removal)
                tasks.notify(own, name)
        with beside() as own:
            sync.finish(own)

    @call
    @repeated
    def unschedule_recurring(
        self, task: AnyTask, id: str, *, connection: C | None = None
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

    def _places(
        self, name: str | None, place: Key | None
    ) -> builtins.list[tuple[str | None, Key | None]]:
        """Return the names that a listing from this place on has, in order, each with the place
        where it begins; None: all names.
        """
        if name is None:
            return [(None, place)]
        names = self._make_store().names_of(name)
        first = 0
        if place is not None and place.task_name in names:
            first = names.index(place.task_name)
        others = [(one, None) for one in names[first + 1 :]]
        return [(names[first], place), *others]

    def _home(self, key: Key, connection: C | None) -> Key:
        """Return the key of a task's row: under a former name, if it waits there."""
        names = self._make_store().names_of(key.task_name)
        if len(names) == 1:
            return key
        keys = [Key(name, key.task_instance) for name in names]
        with self._transactions.joining(connection, key.task_name, reads=True) as (
            queue,
            own,
        ):
            found = (one for one in keys if queue.reader.find(own, one) is not None)
            return next(found, key)

    def _key(self, task: object, id: str, call: str = "arrive") -> Key:
        name, _ = self._known(task, call)
        check = checked_id if call == "arrive" else existing_id
        return Key(name, check(id, name, call))

    def _known(
        self, task: object, call: str = "schedule"
    ) -> tuple[str, Definition | None]:
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
        connection: C | None,
        key: Key,
        command: Callable[[Queue, Joinable], Status],
        word: str | None = None,
    ) -> Receipt:
        status = self._transactions.carry_out(connection, key.task_name, command, word)
        return Receipt(task=key.task_name, id=key.task_instance, status=status)
