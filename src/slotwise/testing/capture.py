"""What the application under test schedules: captured, asserted on, and run inline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, overload

from slotwise import JobRegistry, TaskContext, UnknownTask, task
from slotwise.operations import Schema
from slotwise.spi import Inserted, Joinable, define
from slotwise.testing.inline import run_inline
from slotwise.testing.manual_worker import IN_MEMORY

if TYPE_CHECKING:
    import unittest

    _TestCase = unittest.TestCase
else:
    _TestCase = object


@task(name="unregistered")
def _unregistered(ctx: TaskContext[None]) -> None:
    """Stand for a task that the registry does not have: its data are plain JSON."""


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
        name = None if task is None else _name(task)
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
            what = "a task" if task is None else _name(task)
            asked = f"{what} {fields or ''}".strip()
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
        if wanted.task not in self._registry.definitions:
            raise UnknownTask(
                f"the registry has no task {wanted.task!r}, so it cannot run here"
            )
        result, follow_ups = run_inline(
            self._registry,
            wanted.task,
            wanted.id,
            wanted.data,
            priority=wanted.priority,
        )
        self._add(follow_ups)
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

    def _add(self, rows: Sequence[Inserted], tx: Joinable | None = None) -> None:
        """Capture these rows; a hook ``at_insert``."""
        for row in rows:
            definition = self._registry.definitions.get(row.task) or define(
                _unregistered
            )
            self._found.append(
                ScheduledTask(
                    task=row.task,
                    id=row.id,
                    data=definition.payload.decode(row.data),
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
    before = registry.hooks
    registry.hooks = replace(before, at_insert=(*before.at_insert, found._add))
    try:
        yield found
    finally:
        registry.hooks = before


@contextmanager
def override(registry: JobRegistry, **settings: object) -> Iterator[JobRegistry]:
    """Give a registry other settings within the block, such as ``database_url``: for registries
    that are globals.

    Without ``database_url`` it has a database of its own, in memory, with the tables. Raises what
    a registry raises for invalid settings, and ConfigurationError while the registry runs.
    """
    with registry.overridden(**{"database_url": IN_MEMORY} | settings):
        if "database_url" not in settings:
            Schema.create_in(registry.database)
        yield registry


def _name(task: object) -> str:
    return task if isinstance(task, str) else define(task).name


def _field(data: object, key: str) -> object:
    return data.get(key, ...) if isinstance(data, dict) else getattr(data, key, ...)


class SlotwiseTestMixin(_TestCase):
    """For unittest. Put it before ``TestCase``: ``class MailTest(SlotwiseTestMixin, TestCase)``,
    and name the registry.

    ``self.scheduled`` has the tasks that the test has scheduled. ``slotwise_settings`` override
    the registry's; without a ``database_url`` in them the tests have a database in memory.
    """

    slotwise_registry: ClassVar[JobRegistry]
    slotwise_settings: ClassVar[dict[str, object]] = {}
    scheduled: ScheduledTasks

    def setUp(self) -> None:
        super().setUp()
        stack = ExitStack()
        self.addCleanup(stack.close)
        stack.enter_context(override(self.slotwise_registry, **self.slotwise_settings))
        self.scheduled = stack.enter_context(scheduled(self.slotwise_registry))
