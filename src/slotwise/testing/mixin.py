"""For unittest: each test has the registry's tasks in a database of its own, and captures what is scheduled."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar

from slotwise.testing.capture import ScheduledTasks, override, scheduled

if TYPE_CHECKING:
    import unittest

    from slotwise.registry.registry import JobRegistry

    _Base = unittest.TestCase
else:
    _Base = object


class SlotwiseTestMixin(_Base):
    """Put it before ``TestCase``: ``class MailTest(SlotwiseTestMixin, TestCase)``, and name the registry.

    ``self.scheduled`` has the tasks that the test has scheduled. ``slotwise_settings`` override the registry's; without
    a ``database_url`` in them the tests have a database in memory.
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
