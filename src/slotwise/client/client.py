"""Schedules tasks from anywhere, one-time and recurring ones: a web request, a script, a handler."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from slotwise.client.aio import AsyncClient
from slotwise.client.arguments import (
    Receipt,
    Task,
    checked_choice,
    checked_id,
    fresh_ids,
    is_soon,
    payload_for,
    refuse_a_job,
    refuse_a_slip,
    taken,
    task_name,
    weight,
    when,
)
from slotwise.client.bulk import Bulk
from slotwise.client.recurring import Recurring
from slotwise.errors import ConfigurationError
from slotwise.jobs.context import T
from slotwise.model.records import Follow, IfExists, Key, Wanted, When
from slotwise.model.vocabulary import Outcome, State
from slotwise.store.connect.notifications import ORDERS
from slotwise.store.dialects.task_statements import AT_ONCE
from slotwise.store.queue.task_views import TaskInfo, TaskResult, task_info, task_result

if TYPE_CHECKING:
    from slotwise.client.operations import Operations

#: Rows that ``list`` gives at once.
PAGE = 100

#: What the column takes.
MOST_ARRIVALS = 2_147_483_647

STATES = (State.WAITING, State.RUNNING, State.PAUSED, State.BLOCKED, State.DEAD)


class Client(Bulk, Recurring):
    """Commands on one-time tasks; works without a worker in this process.

    Each takes ``connection``: a SQLAlchemy Connection or Session, or a psycopg connection, whose transaction it joins.
    Without one it has a transaction of its own. A task is its class, an instance, a function under ``@task``, or a
    name. All calls wait for the database; ``aio`` has the same to be awaited. Raises InvalidJob for an invalid task,
    InvalidPayload for data of another type than the task's, ConfigurationError for any other invalid argument.
    """

    @functools.cached_property
    def operations(self) -> Operations:
        """Operations on jobs: pause, trigger, cancel, retry and others."""
        from slotwise.client.operations import Operations  # late: most workers and clients give none

        return Operations(self._make_store, self._wake)

    @property
    def aio(self) -> AsyncClient:
        """The same commands for asyncio applications."""
        return AsyncClient(self)

    def schedule(
        self,
        task: Task[T],
        data: T | None = None,
        *,
        id: str | None = None,
        at: datetime | None = None,
        delay: timedelta | str | None = None,
        priority: int | None = None,
        if_exists: IfExists = "keep",
        countdown: int = 0,
        connection: Any = None,
    ) -> Receipt:
        """Schedule ``task`` with ``data``; the receipt has its id.

        ``at`` (aware) or ``delay`` (``timedelta`` or ``"10s"``) set the due time, by the database's clock; without them
        it is due now. ``id`` has at most 250 characters; the default is a new one. If a task with this id exists,
        waiting, dead or running: "keep" leaves it unchanged (the receipt says "exists" or "running"), "raise" raises
        InstanceExists, "replace" replaces it unless it runs, "reschedule" gives it this time and priority and keeps its
        data.
        ``countdown``: the task is blocked until this many handlers have called ``ctx.count_down`` with its id.
        """
        name, row, _ = self._follow(
            task, data, id=id, at=at, delay=delay, priority=priority, if_exists=if_exists, countdown=countdown
        )
        word = name if is_soon(row.when, self._horizon) and not countdown else None
        with self._joining(connection, name, word=word) as (queue, own):
            status = queue.tasks.put(own, name, row, if_exists)
            if if_exists == "raise" and status != "scheduled":
                found = queue.reader.find(own, Key(name, row.instance))
                raise taken(name, row.instance, task_info(found).state if found else None)
        return self._done(connection, Receipt(task=name, id=row.instance, status=status))

    def _follow(
        self,
        task: Task[T],
        data: T | None = None,
        *,
        id: str | None = None,
        at: datetime | None = None,
        delay: timedelta | str | None = None,
        priority: int | None = None,
        if_exists: IfExists = "keep",
        countdown: int = 0,
    ) -> Follow:
        """The follow-up of ``ctx.then``: validated, and not written yet."""
        name, known = self._known(task)
        refuse_a_job(name, known is not None and known.is_job)
        checked_choice(if_exists, name)
        if not isinstance(countdown, int) or isinstance(countdown, bool) or not 0 <= countdown <= MOST_ARRIVALS:
            raise ConfigurationError(
                f"schedule({name!r}, countdown={countdown!r}): a whole number, 0 to {MOST_ARRIVALS:,}"
            )
        instance = next(fresh_ids()) if id is None else checked_id(id, name)
        due, rank = when(at, delay, name), weight(priority, known, f"schedule({name!r}")
        return Follow(
            name, Wanted(instance, payload_for(task, name, known).encode(data, name), due, rank, countdown), if_exists
        )

    def _typed(self, name: str, plain: Any) -> Any:
        """Plain values as the type of this task, if this process registers it. Raises InvalidPayload."""
        known = self._make_store().definitions.get(name)
        return plain if known is None else known.payload.given(plain, name)

    def _key(self, task: Task[Any], id: str, call: str = "arrive") -> Key:
        """The validated key of the task and id that a call names."""
        name = self._named(task, call)
        return Key(name, checked_id(id, name, call))

    def _named(self, task: Task[Any], call: str) -> str:
        """Its name. Raises UnknownTask for a text one letter off a task of this registry, InvalidJob for a job's."""
        name, definitions = task_name(task), self._make_store().definitions
        if (known := definitions.get(name)) is not None:
            refuse_a_job(name, known.is_job)
        elif isinstance(task, str):
            refuse_a_slip(name, (one for one, found in definitions.items() if not found.is_job), call)
        return name

    def reschedule(
        self,
        task: Task[Any],
        id: str,
        *,
        at: datetime | None = None,
        delay: timedelta | str | None = None,
        priority: int | None = None,
        connection: Any = None,
    ) -> Receipt:
        """Change the due time, and optionally the priority, of a waiting task: "scheduled". By default it is due now.

        "running": a worker holds it; the time applies to the next attempt, if there is one. "exists": it is dead and
        unchanged; retry it. "gone": it has ended, or never existed.
        """
        key, due = self._key(task, id, "reschedule"), when(at, delay, task_name(task), "reschedule")
        rank = None if priority is None else weight(priority, None, f"reschedule({key.task_name!r}")
        word = key.task_name if is_soon(due, self._horizon) else None
        return self._done(connection, self._move(connection, key, due, rank, word))

    def cancel(self, task: Task[Any], id: str, *, connection: Any = None) -> Receipt:
        """Remove a task that waits, is paused or dead: "cancelled". If there is none: "gone".

        "running": its handler is asked to stop (``ctx.cancelled``), and no other attempt is made: it ends as cancelled,
        unless it succeeds.
        """
        key = self._key(task, id, "cancel")
        receipt = self._command(connection, key, lambda queue, own: queue.tasks.cancel(own, key))
        return self._done(connection, receipt, ORDERS if receipt.status == "running" else None)

    def cancel_all(self, task: Task[Any], *, state: str | None = None, connection: Any = None) -> int:
        """Remove all tasks of this name that are not running, or those in one state; return how many.

        ``state`` is waiting, paused, blocked or dead. Running tasks stay; ``cancel`` asks one to stop. Uses
        transactions of 500 each; in the caller's transaction all at once.
        """
        name, count, last = self._named(task, "cancel_all"), 0, ""
        if state not in (None, *set(STATES) - {State.RUNNING}):
            raise ConfigurationError(
                f"cancel_all({name!r}, state={state!r}): expected waiting, paused, blocked or dead"
            )
        while True:
            with self._joining(connection, name) as (queue, own):
                some = queue.tasks.remove(own, name, state, last)
            if not some:
                return count
            count, last = count + len(some), some[-1]

    def retry(
        self,
        task: Task[Any],
        ids: str | Iterable[str] | None = None,
        *,
        at: datetime | None = None,
        delay: timedelta | str | None = None,
        connection: Any = None,
    ) -> builtins.list[Receipt]:
        """Run a dead task again, with all its attempts; or several, or, without ``ids``, all dead ones.

        Without ``at`` and ``delay``: now. A task that waits, for instance for its next attempt, also runs at this time,
        as after ``reschedule``. Returns a receipt for each id: "scheduled", "running" (if this attempt fails, the next
        one is at this time), or "gone". Each statement has up to 500 ids, and without ``connection`` a transaction of
        its own.
        """
        name = self._named(task, "retry")
        due = when(at, delay, name, "retry")
        if ids is None:
            found = self._retry_dead(connection, name, due)
        else:
            given = [ids] if isinstance(ids, str) else ids
            found = self._retry_some(connection, name, [checked_id(one, name, "retry") for one in given], due)
        return self._done(connection, found, name if is_soon(due, self._horizon) else None)

    def _retry_dead(self, connection: Any, name: str, due: When) -> builtins.list[Receipt]:
        found: builtins.list[str] = []
        while True:
            with self._joining(connection, name) as (queue, own):
                some = queue.tasks.retry(own, name, None, due)
            found += some
            if len(some) < AT_ONCE:
                return [Receipt(task=name, id=id, status="scheduled") for id in found]

    def _retry_some(self, connection: Any, name: str, ids: builtins.list[str], due: When) -> builtins.list[Receipt]:
        dead: set[str] = set()
        for start in range(0, len(ids), AT_ONCE):
            with self._joining(connection, name) as (queue, own):
                dead.update(queue.tasks.retry(own, name, ids[start : start + AT_ONCE], due))
        return [
            Receipt(task=name, id=id, status="scheduled") if id in dead else self._move(connection, Key(name, id), due)
            for id in ids
        ]

    def _move(self, connection: Any, key: Key, due: When, rank: int | None = None, word: str | None = None) -> Receipt:
        return self._command(connection, key, lambda queue, own: queue.tasks.move(own, key, due, rank), word)

    def get(self, task: Task[Any], id: str, *, connection: Any = None) -> TaskInfo | None:
        """One task with its data and state; None if it has ended, or never existed."""
        key = self._key(task, id, "get")
        with self._joining(connection, key.task_name) as (queue, own):
            found = queue.reader.find(own, key)
        return None if found is None else task_info(found)

    def list(
        self,
        task: Task[Any] | None = None,
        *,
        state: str | None = None,
        after: TaskInfo | str | None = None,
        limit: int = PAGE,
        connection: Any = None,
    ) -> list[TaskInfo]:
        """One page of tasks by name and id, without their data: of all tasks or of one, in any state or in one.

        ``state`` is waiting, running, paused, blocked or dead. ``after`` is the last line of the previous page, or
        its id if ``task`` is given: no task is missed or listed twice, whatever happens in between.
        """
        name = None if task is None else self._named(task, "list")
        if state is not None and state not in STATES:
            raise ConfigurationError(f"list(state={state!r}): expected {', '.join(STATES)}")
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise ConfigurationError(f"list(limit={limit!r}): expected a whole number, 1 or more")
        if isinstance(after, str) and task is None:
            raise ConfigurationError(f"list(after={after!r:.60}): ids are a task's; name the task, or pass a TaskInfo")
        place = Key(after.task, after.id) if isinstance(after, TaskInfo) else Key(name or "", after) if after else None
        with self._joining(connection, name or "") as (queue, own):
            return [task_info(row) for row in queue.reader.page(own, name=name, state=state, after=place, size=limit)]

    def history(self, task: Task[Any], id: str, *, connection: Any = None) -> builtins.list[TaskResult]:
        """The recorded ends of tasks under this id, the newest first; see ``history`` and ``result_retention``."""
        key = self._key(task, id, "history")
        with self._joining(connection, key.task_name) as (queue, own):
            return [task_result(row) for row in queue.reader.ends(own, key)]

    def result(self, task: Task[Any], id: str, *, connection: Any = None) -> TaskResult | None:
        """The newest successful end under this id, with its ``result``; None if none is stored."""
        ends = self.history(task, id, connection=connection)
        return next((end for end in ends if end.outcome == Outcome.SUCCEEDED), None)
