"""A registry step by step."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from slotwise.engine.run.event_loop import Lifespan
from slotwise.engine.run.runner import BeforeStart, Interceptor
from slotwise.model.events import Listener
from slotwise.registry.validation import Customize, listed
from slotwise.store.queue.queue import AtInsert
from slotwise.store.slots.settlements import AfterSettle

if TYPE_CHECKING:
    from slotwise.registry.registry import JobRegistry


class RegistryBuilder:
    """Build a JobRegistry step by step, with the same checks and messages as its constructor.

    Common settings have a method of their name; ``setting`` takes any.
    """

    def __init__(self) -> None:
        self._parts: dict[str, Any] = {
            "jobs": [],
            "tasks": [],
            "listeners": [],
            "interceptors": [],
            "before_start": [],
            "at_insert": [],
            "after_settle": [],
        }
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
        return self.setting("lifespan", lifespan)

    def database_url(self, url: str) -> Self:
        return self.setting("database_url", url)

    def poll_interval(self, interval: timedelta | str) -> Self:
        return self.setting("poll_interval", interval)

    def heartbeat_interval(self, interval: timedelta | str) -> Self:
        return self.setting("heartbeat_interval", interval)

    def missed_heartbeats_limit(self, limit: int) -> Self:
        return self.setting("missed_heartbeats_limit", limit)

    def shutdown_grace(self, grace: timedelta | str) -> Self:
        return self.setting("shutdown_grace", grace)

    def threads(self, threads: int) -> Self:
        return self.setting("threads", threads)

    def process_hook(self, wanted: bool) -> Self:
        return self.setting("process_hook", wanted)

    def setting(self, name: str, value: object) -> Self:
        """Set one of the other settings, by name."""
        self._options[name] = value
        return self

    def customize(self, function: Customize) -> Self:
        """``function(settings) -> settings`` runs last, in ``build``, and has precedence over everything."""
        return self.setting("customize", function)

    def build(self) -> JobRegistry:
        """Check everything and build. Opens no connection."""
        from slotwise.registry.registry import JobRegistry  # late: it offers this builder

        return JobRegistry(**self._parts, **self._options)
