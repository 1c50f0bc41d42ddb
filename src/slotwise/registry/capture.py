"""What the application under test schedules: captured, asserted on, and run inline."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, overload

from slotwise.client.arguments import task_name
from slotwise.errors import ConfigurationError, UnknownTask
from slotwise.jobs.context import Context, Signal, TaskContext
from slotwise.jobs.definition import Definition
from slotwise.model.records import Claim, FollowUps, Row
from slotwise.payload.payload import UNTYPED
from slotwise.registry.registry import JobRegistry
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.queue.queue import Inserted

if TYPE_CHECKING:
    import unittest

    _TestCase = unittest.TestCase
else:
    _TestCase = object

_NO_CLAIM = (
    "{} proves a claim in the database, and a captured task has none; test this "
    "handler with ManualWorker"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledTask:
    """A task that was scheduled. ``at`` is its due time if that was given, ``delay`` the time
    until it is due.
    """

    task: str
    id: str
    data: Any
    at: datetime | None
    delay: timedelta
    priority: int


class ScheduledTasks(Sequence[ScheduledTask]):
    """The tasks that were scheduled within ``scheduled``, in order."""

    def __init__(self, registry: JobRegistry) -> None:
        self._registry = registry
        self._found: list[ScheduledTask] = []

    @overload
    def __getitem__(self, index: int) -> ScheduledTask: ...
    @overload
    def __getitem__(self, index: slice) -> list[ScheduledTask]: ...
    def __getitem__(self, index: int | slice) -> ScheduledTask | list[ScheduledTask]:
        return self._found[index]

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        return f"ScheduledTasks({self._found!r})"

    def of(self, task: object = None, **fields: object) -> list[ScheduledTask]:
        """Return the tasks of this kind (None: of all) whose data has these values, as attributes
        or keys.
        """
        name = None if task is None else task_name(task)
        return [
            one
            for one in self._found
            if name in (None, one.task)
            and all(_field(one.data, key) == value for key, value in fields.items())
        ]

    def one(self, task: object = None, **fields: object) -> ScheduledTask:
        """Return the only such task. Raises AssertionError if there is none, or more than one."""
        found = self.of(task, **fields)
        if len(found) != 1:
            asked = f"{task_name(task) if task is not None else 'a task'} {fields or ''}".strip()
            raise AssertionError(
                f"{len(found)} tasks match {asked}, expected one; scheduled: {self._found!r}"
            )
        return found[0]

    def none(self, task: object = None, **fields: object) -> None:
        """Raise AssertionError if there is such a task."""
        if found := self.of(task, **fields):
            raise AssertionError(
                f"{len(found)} tasks were scheduled, expected none: {found!r}"
            )

    def run(self, wanted: ScheduledTask) -> object:
        """Run the handler of a captured task in this thread; return what it returned.

        No worker is needed, and no row: this works within a transaction that the test rolls back.
        What the handler raises is raised, without a retry; tasks that it schedules by ``ctx.then``
        are captured, and not inserted. ``ctx.guard`` and ``ctx.complete_in`` raise
        ConfigurationError. Raises UnknownTask if the registry lacks the task.
        """
        definition = self._registry.definitions.get(wanted.task)
        if definition is None:
            raise UnknownTask(
                f"the registry has no task {wanted.task!r}, so it cannot run here"
            )
        hold = _Hold(_claim(wanted, definition))
        ctx = TaskContext[Any](
            hold, fence=_NoFence(), read=lambda _: wanted.data, client=self._registry.client
        )
        with _intercepted(self._registry, ctx):
            result: object = definition.handler(ctx)
            if inspect.isawaitable(result):
                result = asyncio.run(_awaited(result))
        for follow in hold.follow_ups.follows if hold.follow_ups else ():
            row = follow.wanted
            self._add(
                [Inserted(follow.task, row.instance, row.when, row.priority, row.data)]
            )
        return result

    def run_all(self) -> list[object]:
        """Run all captured tasks in order, also those that they schedule; return what each
        returned.

        The capture is empty then. Raises AssertionError after 1,000 tasks: they may schedule each
        other.
        """
        results: list[object] = []
        while self._found:
            results.append(self.run(self._found.pop(0)))
            if len(results) > 1000:
                raise AssertionError(
                    "1,000 tasks have run, and there are more; they may schedule each other"
                )
        return results

    def _add(self, rows: Sequence[Inserted]) -> None:
        for row in rows:
            definition = self._registry.definitions.get(row.task)
            payload = UNTYPED if definition is None else definition.payload
            self._found.append(
                ScheduledTask(
                    task=row.task,
                    id=row.id,
                    data=payload.decode(row.data),
                    at=row.when.at,
                    delay=row.when.delay,
                    priority=row.priority,
                )
            )


@contextmanager
def scheduled(registry: JobRegistry) -> Iterator[ScheduledTasks]:
    """Capture the one-time tasks that ``registry.client`` schedules within the block.

    They are inserted as always, in the client's transaction or in that of ``connection=``; a task
    that was scheduled is captured even if that transaction rolls back later.

    >>> from slotwise import JobRegistry, task
    >>> from slotwise.testing import override, scheduled
    >>> @task(name="send-mail")
    ... def send_mail(ctx):
    ...     return f"sent to {ctx.data['to']}"
    >>> registry = JobRegistry(tasks=[send_mail])
    >>> with override(registry), scheduled(registry) as tasks:
    ...     receipt = registry.client.schedule(send_mail, {"to": "ann"})
    ...     tasks.run(tasks.one(send_mail, to="ann"))
    'sent to ann'
    """
    found = ScheduledTasks(registry)

    def capture(rows: Sequence[Inserted], tx: Joinable) -> None:
        del tx
        found._add(rows)

    before = registry.hooks
    registry.hooks = replace(before, at_insert=(*before.at_insert, capture))
    registry._made = None  # the client makes its store anew, with these hooks
    try:
        yield found
    finally:
        registry.hooks = before
        registry._made = None


@contextmanager
def override(registry: JobRegistry, **settings: Any) -> Iterator[JobRegistry]:
    """Give a registry other settings within the block, such as ``database_url``: for registries
    that are globals.

    Without ``database_url`` it has a database of its own, in memory, with the tables. Raises what
    a registry raises for invalid settings, and ConfigurationError while the registry runs.
    """
    from slotwise.registry.manual_worker import IN_MEMORY, provision

    asked = registry._asked
    before = registry.settings
    definitions = registry.definitions
    database = registry._database
    if registry.is_running:
        raise ConfigurationError(
            "the registry is running; stop it before the test overrides its settings"
        )
    own = "database_url" not in settings
    registry._database = None
    try:
        registry.configure(**{"database_url": IN_MEMORY} | settings)
        if own:
            provision(registry.database)
        yield registry
    finally:
        registry.stop(timedelta(0))
        if registry._database is not None:
            registry._database.close()
        registry._asked = asked
        registry.settings = before
        registry.definitions = definitions
        registry._database = database
        registry._made = None


def _field(data: object, key: str) -> object:
    return data.get(key, ...) if isinstance(data, dict) else getattr(data, key, ...)


def _claim(wanted: ScheduledTask, definition: Definition) -> Claim:
    now = datetime.now(UTC)
    row = Row(
        task_name=wanted.task,
        task_instance=wanted.id,
        execution_time=wanted.at or now,
        version=1,
        picked=True,
        picked_by="inline",
        attempt=1,
        created_version=1,
        priority=wanted.priority,
    )
    return Claim(row=row, holder="inline", lease=timedelta(hours=1), claimed_at=now)


async def _awaited(result: Awaitable[object]) -> object:
    return await result


@contextmanager
def _intercepted(registry: JobRegistry, ctx: Context) -> Iterator[None]:
    with ExitStack() as stack:
        for interceptor in registry.interceptors:
            stack.enter_context(interceptor(ctx))
        yield


class _Hold:
    """A claim that is in no database, and that nobody takes away."""

    lost = ended = promised = False
    unawaited: str | None = None

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.signal = Signal()
        self.follow_ups: FollowUps | None = None

    @property
    def stop_reason(self) -> str | None:
        return self.signal.reason

    def lease_left(self) -> timedelta:
        return self.claim.lease


class _NoFence:
    def guard(self, claim: Claim, connection: object) -> None:
        raise ConfigurationError(_NO_CLAIM.format("ctx.guard"))

    def complete_in(self, claim: Claim, connection: object) -> None:
        raise ConfigurationError(_NO_CLAIM.format("ctx.complete_in"))


class SlotwiseTestMixin(_TestCase):
    """For unittest. Put it before ``TestCase``: ``class MailTest(SlotwiseTestMixin, TestCase)``,
    and name the registry.

    ``self.scheduled`` has the tasks that the test has scheduled. ``slotwise_settings`` override
    the registry's; without a ``database_url`` in them the tests have a database in memory.
    """

    slotwise_registry: ClassVar[JobRegistry]
    slotwise_settings: ClassVar[dict[str, Any]] = {}
    scheduled: ScheduledTasks

    def setUp(self) -> None:
        super().setUp()
        stack = ExitStack()
        self.addCleanup(stack.close)
        stack.enter_context(override(self.slotwise_registry, **self.slotwise_settings))
        self.scheduled = stack.enter_context(scheduled(self.slotwise_registry))
