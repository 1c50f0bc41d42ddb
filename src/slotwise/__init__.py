"""slotwise: recurring jobs and one-time tasks on a cluster, coordinated only by your database.

Every slot is accounted for: it ran as often as its job allows, or the ledger says why not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from slotwise.codecs import register_codec
from slotwise.context import JobContext, TaskContext
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
from slotwise.job import DistributedJob, OneTimeTask, job, task
from slotwise.policies import CatchUp, Overlap, Retry
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
from slotwise.settings import Settings
from slotwise.steering import Cancel, Fail, Snooze

if TYPE_CHECKING:
    from slotwise.asked import Item, Receipt
    from slotwise.client import Client
    from slotwise.contrib.command import CommandJob
    from slotwise.registry import JobRegistry
    from slotwise.store.puts import Tally
    from slotwise.store.task_lines import TaskEnd, TaskLine

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
    "Tally",
    "TaskContext",
    "TaskEnd",
    "TaskLine",
    "UnknownTask",
    "job",
    "parse_schedule",
    "register_codec",
    "task",
]

#: These bring the whole engine with SQLAlchemy and alembic: loaded when first used, for a pytest plugin imports
#: this package in every run of its users' tests.
_LATE = {
    "Client": "slotwise.client",
    "Item": "slotwise.asked",
    "Receipt": "slotwise.asked",
    "Tally": "slotwise.store.puts",
    "TaskEnd": "slotwise.store.task_lines",
    "TaskLine": "slotwise.store.task_lines",
    "CommandJob": "slotwise.contrib.command",
    "JobRegistry": "slotwise.registry",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'slotwise' has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(_LATE[name]), name)
    return found
