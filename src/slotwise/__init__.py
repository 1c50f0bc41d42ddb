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
from slotwise.jobs.context import Cancel, Fail, JobContext, Snooze, TaskContext
from slotwise.jobs.job import DistributedJob, OneTimeTask, job, task
from slotwise.jobs.policies import CatchUp, Overlap, Retry
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
    from slotwise.contrib.command import CommandJob
    from slotwise.registry.registry import JobRegistry
    from slotwise.store.queue.insert import BulkResult
    from slotwise.store.queue.task_views import TaskResult, TaskInfo

__all__ = [
    "AnyOf",
    "Calendar",
    "Cancel",
    "CatchUp",
    "ClaimLost",
    "Client",
    "CommandFailed",
    "CommandJob",
    "ConfigurationError",
    "Cron",
    "Daily",
    "DatabaseProblem",
    "DatabaseRefused",
    "DatabaseUnreachable",
    "Disabled",
    "DistributedJob",
    "DriverMissing",
    "Every",
    "Fail",
    "FixedDelay",
    "InstanceExists",
    "InvalidCrontab",
    "InvalidJob",
    "InvalidPayload",
    "InvalidSchedule",
    "InvalidSetting",
    "Item",
    "JobCancelled",
    "JobContext",
    "JobRegistry",
    "Once",
    "OneTimeTask",
    "Overlap",
    "PlanMissing",
    "Receipt",
    "Retry",
    "Schedule",
    "SchemaMismatch",
    "SchemaMissing",
    "Settings",
    "SlotwiseError",
    "Snooze",
    "BulkResult",
    "TaskContext",
    "TaskResult",
    "TaskInfo",
    "UnknownTask",
    "job",
    "parse_schedule",
    "register_codec",
    "task",
]

#: These bring the whole engine with SQLAlchemy and alembic: loaded when first used, for a pytest plugin imports
#: this package in every run of its users' tests.
_LATE = {
    "Client": "slotwise.client.client",
    "Item": "slotwise.client.arguments",
    "Receipt": "slotwise.client.arguments",
    "BulkResult": "slotwise.store.queue.insert",
    "TaskResult": "slotwise.store.queue.task_views",
    "TaskInfo": "slotwise.store.queue.task_views",
    "CommandJob": "slotwise.contrib.command",
    "JobRegistry": "slotwise.registry.registry",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'slotwise' has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(_LATE[name]), name)
    return found
