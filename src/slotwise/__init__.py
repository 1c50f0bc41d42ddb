"""slotwise: recurring jobs and one-time tasks on a cluster, coordinated only by your database.

Every slot is accounted for: it ran as often as its job allows, or the ledger says why not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from slotwise.errors import (
    ClaimLost,
    CommandFailed,
    ConfigurationError,
    DatabaseProblem,
    DatabaseRefused,
    DatabaseUnreachable,
    DriverMissing,
    InstanceExists,
    InvalidCrontab,
    InvalidJob,
    InvalidPayload,
    InvalidSchedule,
    InvalidSetting,
    JobCancelled,
    PlanMissing,
    SchemaMismatch,
    SchemaMissing,
    SlotwiseError,
    UnknownTask,
)
from slotwise.jobs.context import (
    Cancel,
    Context,
    Fail,
    JobContext,
    Skip,
    Snooze,
    TaskContext,
)
from slotwise.jobs.job import DistributedJob, OneTimeTask, job, task
from slotwise.jobs.policies import CatchUp, Overlap, Retry
from slotwise.model.vocabulary import register_reason
from slotwise.payload.payload import register_codec
from slotwise.schedules import (
    AnyOf,
    Calendar,
    Cron,
    Daily,
    Disabled,
    Every,
    FixedDelay,
    Once,
    Schedule,
    parse_schedule,
)
from slotwise.settings.settings import Settings

if TYPE_CHECKING:
    from slotwise.client.arguments import Item, Receipt
    from slotwise.client.client import Client
    from slotwise.client.operations import Operations
    from slotwise.contrib.command import CommandJob
    from slotwise.explain.explanation import Explanation, TaskExplanation
    from slotwise.registry.inspection import Inspection
    from slotwise.registry.registry import JobRegistry
    from slotwise.store.operations.transaction import AuditEntry
    from slotwise.store.queue.queue import BulkResult, TaskInfo, TaskResult
    from slotwise.store.reading.task_counts import Backlog, TaskCount
    from slotwise.store.reading.views import AttemptInfo, Health, JobInfo, SlotInfo
    from slotwise.store.reading.worker_registry import WorkerInfo

__all__ = [
    "AnyOf",
    "AttemptInfo",
    "AuditEntry",
    "Backlog",
    "BulkResult",
    "Calendar",
    "Cancel",
    "CatchUp",
    "ClaimLost",
    "Client",
    "CommandFailed",
    "CommandJob",
    "ConfigurationError",
    "Context",
    "Cron",
    "Daily",
    "DatabaseProblem",
    "DatabaseRefused",
    "DatabaseUnreachable",
    "Disabled",
    "DistributedJob",
    "DriverMissing",
    "Every",
    "Explanation",
    "Fail",
    "FixedDelay",
    "Health",
    "Inspection",
    "InstanceExists",
    "InvalidCrontab",
    "InvalidJob",
    "InvalidPayload",
    "InvalidSchedule",
    "InvalidSetting",
    "Item",
    "JobCancelled",
    "JobContext",
    "JobInfo",
    "JobRegistry",
    "Once",
    "OneTimeTask",
    "Operations",
    "Overlap",
    "PlanMissing",
    "Receipt",
    "Retry",
    "Schedule",
    "SchemaMismatch",
    "SchemaMissing",
    "Settings",
    "Skip",
    "SlotInfo",
    "SlotwiseError",
    "Snooze",
    "TaskContext",
    "TaskCount",
    "TaskExplanation",
    "TaskInfo",
    "TaskResult",
    "UnknownTask",
    "WorkerInfo",
    "job",
    "parse_schedule",
    "register_codec",
    "register_reason",
    "task",
]

#: These bring the whole engine with SQLAlchemy and alembic: loaded when first used, for a pytest
#: plugin imports this package in every run of its users' tests.
_LATE = {
    "slotwise.client.arguments": ("Item", "Receipt"),
    "slotwise.client.client": ("Client",),
    "slotwise.client.operations": ("Operations",),
    "slotwise.contrib.command": ("CommandJob",),
    "slotwise.explain.explanation": ("Explanation", "TaskExplanation"),
    "slotwise.registry.inspection": ("Inspection",),
    "slotwise.registry.registry": ("JobRegistry",),
    "slotwise.store.operations.transaction": ("AuditEntry",),
    "slotwise.store.queue.queue": ("BulkResult", "TaskInfo", "TaskResult"),
    "slotwise.store.reading.task_counts": ("Backlog", "TaskCount"),
    "slotwise.store.reading.views": ("AttemptInfo", "Health", "JobInfo", "SlotInfo"),
    "slotwise.store.reading.worker_registry": ("WorkerInfo",),
}
_HOME = {name: module for module, names in _LATE.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("slotwise.model.identity").own_version()
    if name not in _HOME:
        raise AttributeError(f"module 'slotwise' has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(_HOME[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
