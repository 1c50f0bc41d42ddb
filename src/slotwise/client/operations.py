"""Operations on the whole cluster, through the database: every worker obeys within one poll."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Literal, Self, Unpack, cast

from slotwise.client.arguments import AnyTask, instant_of, name_of, optional_instant
from slotwise.client.calls import Awaited, call
from slotwise.client.operation_arguments import (
    chosen_instances,
    chosen_tasks,
    overlap_rule,
    window_of,
)
from slotwise.client.requester import How, Requester, this_user
from slotwise.client.stacks import stacks_of
from slotwise.errors import ConfigurationError
from slotwise.model.durations import parse_duration
from slotwise.model.records import RECURRING, is_whole
from slotwise.model.vocabulary import ListedState
from slotwise.store.operations import (
    backfill,
    instance_operations,
    job_operations,
    slot_operations,
    task_operations,
)
from slotwise.store.operations.backfill import Backfill
from slotwise.store.operations.instance_operations import InstanceFilter
from slotwise.store.operations.job_operations import Epoch, Resumed, SettledJob
from slotwise.store.operations.stacks import HandlerStack
from slotwise.store.operations.transaction import (
    id_of,
)
from slotwise.store.planning.calendars import Calendars
from slotwise.store.queue.task_filter import TaskFilter

if TYPE_CHECKING:
    from slotwise.client.opening import Application
    from slotwise.settings.settings import Settings


class Requests(Requester):
    """What operators request; see Operations and AsyncOperations."""

    @call
    def pause(
        self,
        job: AnyTask,
        *,
        id: str | None = None,
        until: datetime | timedelta | None = None,
        replay: bool = False,
        **how: Unpack[How],
    ) -> bool:
        """Start no slot, retry or trigger of the job any more, or of one instance; False if it was
        paused already. The name of one-time tasks holds all of them, also new ones.

        Running handlers finish. Slots that come due meanwhile are skipped (paused) when the job is
        resumed; with ``replay`` they are left to the job's catch-up. ``until``: the pause ends by
        itself then, by the database's clock, or after so long; its slots are skipped as
        ``maintenance``. If it was paused already, the pause gets this end, or none.
        """
        operation = partial(
            job_operations.pause,
            job=self._row_name(job),
            id=None if id == RECURRING else id,
            window=window_of(until, replay=replay),
        )
        return bool(self._chunks(operation, **how).found)

    @call
    def pause_all(
        self,
        *,
        until: datetime | timedelta | None = None,
        replay: bool = False,
        **how: Unpack[How],
    ) -> bool:
        """Start nothing in the whole installation any more, including jobs and tasks that are
        added later; ``until`` and ``replay`` as in ``pause``.
        """
        window = window_of(until, replay=replay)
        return self._operate(partial(job_operations.pause_all, window=window), **how)

    @call
    def resume(
        self,
        job: AnyTask,
        *,
        id: str | None = None,
        replay: bool = False,
        **how: Unpack[How],
    ) -> list[Resumed]:
        """Resume the job with all of its instances, or one instance, or one-time tasks by their
        name; empty if it was not paused. ``replay``: leave the slots of the pause to catch-up.
        """
        operation = partial(
            job_operations.resume,
            job=self._row_name(job),
            id=None if id == RECURRING else id,
            replay=replay,
        )
        return list(self._chunks(operation, **how).found)

    @call
    def resume_all(
        self, *, replay: bool = False, **how: Unpack[How]
    ) -> list[Resumed] | None:
        """End a pause of everything; return the jobs that have skipped slots, or None if there was
        no such pause.

        Jobs that are paused by name stay paused.
        """
        return self._operate(partial(job_operations.resume_all, replay=replay), **how)

    @call
    def trigger(
        self,
        job: AnyTask,
        *,
        id: str = RECURRING,
        overlap: Literal["beside", "queue", "skip"] = "beside",
        **how: Unpack[How],
    ) -> datetime:
        """Run the job now, beside its schedule; return the slot of that run, the database's time
        of this request.

        The schedule stays as it is; the job's statistics count the run. If something of the job is
        running now, or an earlier trigger has yet to start, the trigger runs beside it, waits for
        its end (``queue``), or is skipped (``skip``; the ledger lists it). If the job is paused,
        it waits until the job is resumed.
        """
        rule = overlap_rule(overlap)
        return self._operate(
            partial(
                slot_operations.trigger_now,
                job=self._row_name(job),
                overlap=rule,
                instance=id,
            ),
            **how,
        )

    @call
    def skip_next(
        self,
        job: AnyTask,
        slot: datetime | None = None,
        *,
        id: str = RECURRING,
        **how: Unpack[How],
    ) -> datetime:
        """Skip the next slot that has not begun (operator) and return it. ``slot``: only if it is
        this one.
        """
        wanted = optional_instant(slot)
        return self._operate(
            partial(
                slot_operations.skip_next,
                job=self._row_name(job),
                slot=wanted,
                instance=id,
            ),
            **how,
        )

    @call
    def cancel(
        self,
        job: AnyTask,
        slot: datetime | None = None,
        *,
        id: str | None = None,
        **how: Unpack[How],
    ) -> list[datetime]:
        """Ask its running handlers to stop, or end the given slot, also if it waits for a retry;
        return the slots.

        Without ``id`` this applies to all its instances; a given slot is the job's own. Handlers
        learn it with the next heartbeat: ``ctx.cancelled``, with the reason ``operator``; async
        ones are cancelled. The slot ends as cancelled, unless its handler succeeds.
        """
        wanted = optional_instant(slot)
        return self._operate(
            partial(
                slot_operations.cancel,
                job=self._row_name(job),
                slot=wanted,
                instance=id,
            ),
            **how,
        )

    @call
    def retry(
        self, job: AnyTask, slot: datetime, *, id: str = RECURRING, **how: Unpack[How]
    ) -> None:
        """Start one more attempt of a slot that ended as failed, dead, lost or cancelled; the
        attempt count continues.

        A job with ``on_lost="give_up"`` starts a slot once, so its slots are rejected.
        """
        name = self._row_name(job)
        known = self._make_store().definitions.get(name)
        if known is not None and known.gives_up:
            raise ConfigurationError(
                f'job {name!r} has on_lost="give_up": its slots start once; trigger it instead'
            )
        self._operate(
            partial(
                slot_operations.retry, job=name, slot=instant_of(slot), instance=id
            ),
            **how,
        )

    @call
    def backfill(
        self,
        job: AnyTask,
        first: datetime,
        last: datetime,
        *,
        id: str = RECURRING,
        pace: timedelta | str | None = None,
        concurrency: int = 1,
        failed: bool = False,
        forgotten: bool = False,
        **how: Unpack[How],
    ) -> Backfill:
        """Run the slots from ``first`` to ``last`` that never ran, the oldest first, beside the
        schedule.

        ``concurrency`` of them run side by side, each due ``pace`` after the start of the previous
        one. ``failed``: also those that ended as failed, dead, lost or cancelled. At most 10,000
        slots; call it with ``dry_run`` first. If history was pruned, the ledger cannot say what
        ran: rejected, unless ``forgotten`` slots may run again.
        """
        begin = instant_of(first)
        end = instant_of(last)
        if not is_whole(concurrency, 1, 2**31 - 1):
            raise ConfigurationError(
                f"backfill(concurrency={concurrency!r}): expected a whole number "
                "from 1 to 2**31 - 1"
            )
        gap = None if pace is None else parse_duration(pace)
        if begin > end:
            raise ConfigurationError(
                f"backfill from {first.isoformat()} to {last.isoformat()}: the end comes first"
            )
        operation = partial(
            backfill.backfill,
            job=self._row_name(job),
            first=begin,
            last=end,
            pace=gap,
            concurrency=concurrency,
            failed=failed,
            forgotten=forgotten,
            instance=id,
        )
        (found,) = self._chunks(operation, **how).found
        return cast("Backfill", found)

    @call
    def cancel_backfill(
        self, job: AnyTask, *, id: str | None = None, **how: Unpack[How]
    ) -> int:
        """Cancel the backfill slots that have not begun, without ``id`` of all instances; return
        how many.
        """
        return self._chunks(
            partial(
                slot_operations.cancel_backfill, job=self._row_name(job), instance=id
            ),
            **how,
        ).rows

    @call
    def delete(self, job: AnyTask, *, force: bool = False, **how: Unpack[How]) -> int:
        """Delete the rows of a job that is no longer in the code; return how many. Its history
        stays.

        Rejected while it runs, and, unless ``force``, while a live worker registers it and would
        plan it again.
        """
        return self._chunks(
            partial(job_operations.delete, job=self._row_name(job), known=force), **how
        ).rows

    @call
    def pause_instances(
        self,
        job: AnyTask,
        where: InstanceFilter,
        *,
        until: datetime | timedelta | None = None,
        replay: bool = False,
        **how: Unpack[How],
    ) -> list[str]:
        """Pause the recurring instances that meet the filter, as ``pause`` does with one; return
        the ids of those that were not paused so.

        Each transaction takes 500 instances. If it is interrupted, call it again.
        """
        chosen = chosen_instances("pause_instances", job, where)
        window = window_of(until, replay=replay)
        operation = partial(instance_operations.pause, chosen=chosen, window=window)
        return list(self._chunks(operation, **how).found)

    @call
    def resume_instances(
        self,
        job: AnyTask,
        where: InstanceFilter,
        *,
        replay: bool = False,
        **how: Unpack[How],
    ) -> list[str]:
        """End the pauses of these instances, as ``resume`` does with one; return the ids of those
        that were paused.
        """
        chosen = chosen_instances("resume_instances", job, where)
        operation = partial(instance_operations.resume, chosen=chosen, replay=replay)
        return list(self._chunks(operation, **how).found)

    @call
    def trigger_instances(
        self,
        job: AnyTask,
        where: InstanceFilter,
        *,
        overlap: Literal["beside", "queue", "skip"] = "beside",
        **how: Unpack[How],
    ) -> list[str]:
        """Run these instances now, as ``trigger`` does with one; return their ids. If it is
        interrupted and called again, those that came first run twice.
        """
        chosen = chosen_instances("trigger_instances", job, where)
        rule = overlap_rule(overlap)
        operation = partial(instance_operations.trigger, chosen=chosen, overlap=rule)
        return list(self._chunks(operation, **how).found)

    @call
    def skip_instances(
        self, job: AnyTask, where: InstanceFilter, **how: Unpack[How]
    ) -> list[str]:
        """Skip the next slot of these instances, as ``skip_next`` does with one; return the ids
        of those that have a next slot.
        """
        chosen = chosen_instances("skip_instances", job, where)
        operation = partial(instance_operations.skip_next, chosen=chosen)
        return list(self._chunks(operation, **how).found)

    @call
    def delete_instances(
        self, job: AnyTask, where: InstanceFilter, **how: Unpack[How]
    ) -> list[str]:
        """Delete these instances, as ``client.unschedule_recurring`` does with one; return their
        ids. Running handlers finish, and the history stays.
        """
        chosen = chosen_instances("delete_instances", job, where)
        operation = partial(instance_operations.delete, chosen=chosen)
        return list(self._chunks(operation, **how).found)

    @call
    def retry_tasks(
        self,
        task: AnyTask,
        *,
        where: TaskFilter | None = None,
        limit: int | None = None,
        **how: Unpack[How],
    ) -> int:
        """Run dead one-time tasks again, with all their attempts; return how many.

        ``where`` says which, by default all, and ``limit`` how many at most: the result is below
        it once none is left. Each transaction has up to 5,000 rows, and its own entry in the
        audit. A dry run counts.
        """
        chosen = chosen_tasks("retry_tasks", task, None, where, limit)
        return self._chunks(partial(task_operations.retry, chosen=chosen), **how).rows

    @call
    def cancel_tasks(
        self,
        task: AnyTask,
        *,
        state: str | None = None,
        where: TaskFilter | None = None,
        limit: int | None = None,
        **how: Unpack[How],
    ) -> int:
        """Remove one-time tasks that do not run, and ask the handlers of those that run to stop;
        return how many.

        ``state`` is one of TASK_STATES; for the others see ``retry_tasks``.
        """
        chosen = chosen_tasks("cancel_tasks", task, state, where, limit)
        return self._chunks(partial(task_operations.cancel, chosen=chosen), **how).rows

    @call
    def delete_tasks(
        self,
        task: AnyTask,
        *,
        state: str | None = None,
        where: TaskFilter | None = None,
        limit: int | None = None,
        **how: Unpack[How],
    ) -> int:
        """Remove one-time tasks that do not run; return how many. Those that run stay.

        ``state`` is waiting, paused, blocked or dead; for the others see ``retry_tasks``.
        """
        chosen = chosen_tasks("delete_tasks", task, state, where, limit)
        if state == ListedState.RUNNING:
            raise ConfigurationError(
                "delete_tasks(state='running'): tasks that run are cancelled instead"
            )
        return self._chunks(partial(task_operations.delete, chosen=chosen), **how).rows

    @call
    def new_epoch(self, **how: Unpack[How]) -> Epoch:
        """After a restore of all tables: raise all tokens, end all claims, and change the
        installation's id.

        Earlier holders are rejected, here and wherever a token is compared.
        """
        return self._operate(job_operations.new_epoch, **how)

    @call
    def settle_until(self, until: datetime, **how: Unpack[How]) -> list[SettledJob]:
        """After a restore: skip the waiting slots up to ``until`` (at most now) as settled; return
        them by job.
        """
        return self._operate(
            partial(job_operations.settle_until, until=instant_of(until)), **how
        )

    @call
    def stacks(
        self,
        name: AnyTask,
        *,
        id: str | None = None,
        timeout: timedelta | str = "10s",
    ) -> list[HandlerStack]:
        """Return where the handlers of a job or task are, or those of a worker with this name.

        Their workers answer, after their next heartbeat at the latest. One that has not answered
        within ``timeout`` is frozen, or its heartbeats hang: the stack is None. No values of
        variables are among the lines of code.
        """
        within = parse_duration(timeout)
        wanted = None if id is None else id_of(id)
        store = self._make_store()
        with store.database.in_words():
            return stacks_of(store, name_of(name), wanted, within)


class Operations(Requests):
    """Pause and resume, trigger, skip, cancel, retry, backfill and delete: jobs by name, or as
    registered.

    Each operation is one transaction and is recorded in the audit table with its author, time and
    ``note``. Pausing, resuming and deleting a job with many instances, and backfills and their
    cancelling, take a transaction for each 500 rows; if one is interrupted, call it again, and it
    continues. The default ``author`` is the user and host of this process. With ``dry_run`` an
    operation returns what it would do, and changes nothing. Works without a worker in this
    process. It waits for the database; ``aio`` has the same to be awaited.

    ``id`` is the id of a recurring instance of ``client.schedule_recurring``: the operation then
    applies to that instance, and its handler receives that instance's data.

    Raises UnknownTask for a job without a row, and ConfigurationError, in one line with the
    remedy, for an operation that is not possible now.
    """

    @classmethod
    @contextmanager
    def open(
        cls,
        where: Settings | str | None = None,
        *,
        application: Application | None = None,
        author: str | None = None,
    ) -> Iterator[Self]:
        """Open the tables without a worker, and close the connections at the end.

        ``where``: settings, or the address of the database; by default those of the
        ``application`` (a JobRegistry), else of environment and settings file. With an
        ``application``, operations that its jobs rule out are rejected. Raises DatabaseUnreachable
        or another DatabaseProblem, SchemaMissing, SchemaMismatch.
        """
        from slotwise.client.opening import open_store  # late: it brings alembic

        with open_store(where, application) as store:
            yield cls(lambda: store, author=author)

    @property
    def aio(self) -> AsyncOperations:
        """The same operations for asyncio applications."""
        return AsyncOperations(self)

    @property
    def calendars(self) -> Calendars:
        """Business calendars in the database: read, changed, removed."""
        return Calendars(self._make_store(), self._author or this_user())

    def by(self, author: str) -> Operations:
        """The same operations under another author, for example the user of a web page."""
        return Operations(self._make_store, self._wake, author=author)


class AsyncOperations(Awaited[Operations], Requests):
    """As Operations, awaited: each call runs on a thread, and finishes even if it is cancelled."""

    def by(self, author: str) -> AsyncOperations:
        """The same operations under another author."""
        return AsyncOperations(self._inner.by(author))
