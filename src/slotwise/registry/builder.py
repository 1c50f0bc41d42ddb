"""A registry step by step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self, Unpack

from slotwise.engine.run.executors import Lifespan
from slotwise.engine.run.runner import BeforeStart, Interceptor
from slotwise.model.events import Listener
from slotwise.registry.validation import Customize, listed
from slotwise.settings.settings import SettingsKeywords
from slotwise.store.queue.queue import AtInsert
from slotwise.store.slots.settlements import AfterSettle

if TYPE_CHECKING:
    from slotwise.registry.registry import JobRegistry


class RegistryBuilder:
    """Build a JobRegistry step by step, with the same checks and messages as its constructor."""

    def __init__(self) -> None:
        lists = ("jobs", "tasks", "listeners", "interceptors", "before_start", "at_insert", "after_settle")
        self._parts: dict[str, Any] = {name: [] for name in lists}
        self._options: dict[str, Any] = {}

    def with_job(self, job: object) -> Self:
        return self.with_jobs([job])

    def with_jobs(self, jobs: Iterable[object]) -> Self:
        self._parts["jobs"].extend(listed(jobs, "jobs"))
        return self

    def with_task(self, task: object) -> Self:
        return self.with_tasks([task])

    def with_tasks(self, tasks: Iterable[object]) -> Self:
        self._parts["tasks"].extend(listed(tasks, "tasks"))
        return self

    def with_listener(self, listener: Listener) -> Self:
        self._parts["listeners"].append(listener)
        return self

    def with_interceptor(self, interceptor: Interceptor) -> Self:
        self._parts["interceptors"].append(interceptor)
        return self

    def with_before_start(self, hook: BeforeStart) -> Self:
        self._parts["before_start"].append(hook)
        return self

    def with_at_insert(self, hook: AtInsert) -> Self:
        self._parts["at_insert"].append(hook)
        return self

    def with_after_settle(self, hook: AfterSettle) -> Self:
        self._parts["after_settle"].append(hook)
        return self

    def lifespan(self, lifespan: Lifespan) -> Self:
        self._options["lifespan"] = lifespan
        return self

    def settings(self, **settings: Unpack[SettingsKeywords]) -> Self:
        """Set any settings by keyword, as in the constructor; a later call changes those that it names."""
        self._options.update(settings)
        return self

    def customize(self, function: Customize) -> Self:
        """``function(settings) -> settings`` runs last, in ``build``, and has precedence over everything."""
        self._options["customize"] = function
        return self

    def build(self) -> JobRegistry:
        """Check everything and build. Opens no connection."""
        from slotwise.registry.registry import JobRegistry  # late: it offers this builder

        return JobRegistry(**self._parts, **self._options)
