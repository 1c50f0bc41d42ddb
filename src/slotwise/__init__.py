"""slotwise: recurring jobs and one-time tasks on a cluster, coordinated only by your database.

Every slot is accounted for: it ran as often as its job allows, or the ledger says why not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotwise.errors import (
    ClaimLost,
    CommandFailed,
    ConfigurationError,
    DatabaseProblem,
    DatabaseRefused,
    DatabaseUnreachable,
    DriverMissing,
    InstanceExists,
    InvalidCronJobs,
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
    SyncSuperseded,
    UnknownTask,
)
from slotwise.model.exports import late

if TYPE_CHECKING:
    from slotwise.client.arguments import Item, Receipt
    from slotwise.client.client import Client
    from slotwise.client.scoped_items import RecurringItem
    from slotwise.jobs.context import Context, JobContext, TaskContext
    from slotwise.jobs.functions import Call, job, task
    from slotwise.jobs.job import DistributedJob, OneTimeTask
    from slotwise.jobs.policies import CatchUp, Overlap, Retry
    from slotwise.jobs.steering import Cancel, Fail, Resume, Skip, Snooze
    from slotwise.registry.registry import JobRegistry
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
    from slotwise.store.planning.scopes import SyncReport
    from slotwise.store.queue.queue import BulkResult

    __version__: str

__all__ = [
    "AnyOf",
    "BulkResult",
    "Calendar",
    "Call",
    "Cancel",
    "CatchUp",
    "ClaimLost",
    "Client",
    "CommandFailed",
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
    "Fail",
    "FixedDelay",
    "InstanceExists",
    "InvalidCronJobs",
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
    "RecurringItem",
    "Resume",
    "Retry",
    "Schedule",
    "SchemaMismatch",
    "SchemaMissing",
    "Settings",
    "Skip",
    "SlotwiseError",
    "Snooze",
    "SyncReport",
    "SyncSuperseded",
    "TaskContext",
    "UnknownTask",
    "job",
    "parse_schedule",
    "task",
]

#: Loaded when first used: the engine brings SQLAlchemy and alembic, and a program that imports this
#: package, such as a pytest plugin, may need a few of these names or none.
_HOMES = {
    "slotwise.client.arguments": ("Item", "Receipt"),
    "slotwise.client.client": ("Client",),
    "slotwise.client.scoped_items": ("RecurringItem",),
    "slotwise.jobs.context": ("Context", "JobContext", "TaskContext"),
    "slotwise.jobs.functions": ("Call", "job", "task"),
    "slotwise.jobs.job": ("DistributedJob", "OneTimeTask"),
    "slotwise.jobs.policies": ("CatchUp", "Overlap", "Retry"),
    "slotwise.jobs.steering": ("Cancel", "Fail", "Resume", "Skip", "Snooze"),
    "slotwise.registry.registry": ("JobRegistry",),
    "slotwise.schedules": (
        "AnyOf",
        "Calendar",
        "Cron",
        "Daily",
        "Disabled",
        "Every",
        "FixedDelay",
        "Once",
        "Schedule",
        "parse_schedule",
    ),
    "slotwise.settings.settings": ("Settings",),
    "slotwise.store.planning.scopes": ("SyncReport",),
    "slotwise.store.queue.queue": ("BulkResult",),
}


if not TYPE_CHECKING:
    _load, __dir__ = late(__name__, _HOMES)

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from slotwise.model.identity import own_version

            return own_version()
        return _load(name)
