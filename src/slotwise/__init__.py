"""slotwise: recurring jobs and one-time tasks on a cluster, coordinated only by your database.

Every slot is accounted for: it ran as often as its job allows, or the ledger says why not.
"""

from __future__ import annotations

from slotwise.client import Client
from slotwise.errors import (
    ClaimLost,
    ConfigurationError,
    DatabaseProblem,
    DatabaseUnreachable,
    DriverMissing,
    InstanceExists,
    InvalidJob,
    InvalidSchedule,
    InvalidSetting,
    JobCancelled,
    PlanMissing,
    SchemaMismatch,
    SchemaMissing,
    SlotwiseError,
    UnknownTask,
)
from slotwise.job import DistributedJob, JobContext, OneTimeTask, job, task
from slotwise.policies import CatchUp, Overlap, Retry
from slotwise.registry import JobRegistry
from slotwise.schedules import Cron, Daily, Disabled, Every, FixedDelay, Schedule
from slotwise.settings import Settings

__all__ = [
    "CatchUp",
    "ClaimLost",
    "Client",
    "ConfigurationError",
    "Cron",
    "Daily",
    "DatabaseProblem",
    "DatabaseUnreachable",
    "Disabled",
    "DistributedJob",
    "DriverMissing",
    "Every",
    "FixedDelay",
    "InstanceExists",
    "InvalidJob",
    "InvalidSchedule",
    "InvalidSetting",
    "JobCancelled",
    "JobContext",
    "JobRegistry",
    "OneTimeTask",
    "Overlap",
    "PlanMissing",
    "Retry",
    "Schedule",
    "SchemaMismatch",
    "SchemaMissing",
    "Settings",
    "SlotwiseError",
    "UnknownTask",
    "job",
    "task",
]
