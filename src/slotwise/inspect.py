"""Read what the tables say: for command lines, pages, dashboards and monitoring.

Every read is plain and awaited, takes no locks, and returns frozen typed values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotwise.model.exports import late

if TYPE_CHECKING:
    from slotwise.explain.explanation import Explanation, TaskExplanation
    from slotwise.registry.inspection import AsyncInspection, Inspection
    from slotwise.store.operations.transaction import AuditEntry
    from slotwise.store.queue.queue import TaskInfo, TaskResult
    from slotwise.store.reading.task_counts import Backlog, TaskCount
    from slotwise.store.reading.views import AttemptInfo, Health, JobInfo, SlotInfo
    from slotwise.store.reading.worker_registry import WorkerInfo

_HOMES = {
    "slotwise.explain.explanation": ("Explanation", "TaskExplanation"),
    "slotwise.registry.inspection": ("AsyncInspection", "Inspection"),
    "slotwise.store.operations.transaction": ("AuditEntry",),
    "slotwise.store.queue.queue": ("TaskInfo", "TaskResult"),
    "slotwise.store.reading.task_counts": ("Backlog", "TaskCount"),
    "slotwise.store.reading.views": ("AttemptInfo", "Health", "JobInfo", "SlotInfo"),
    "slotwise.store.reading.worker_registry": ("WorkerInfo",),
}
__all__ = [
    "AsyncInspection",
    "AttemptInfo",
    "AuditEntry",
    "Backlog",
    "Explanation",
    "Health",
    "Inspection",
    "JobInfo",
    "SlotInfo",
    "TaskCount",
    "TaskExplanation",
    "TaskInfo",
    "TaskResult",
    "WorkerInfo",
]


if not TYPE_CHECKING:
    __getattr__ = late(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
