"""Read what the tables say: for command lines, pages, dashboards and monitoring.

Every read is plain and awaited, takes no locks, and returns frozen typed values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotwise.model.exports import late

if TYPE_CHECKING:
    from slotwise.client.inspection import AsyncInspection, Inspection
    from slotwise.explain.job_explanation import JobExplanation
    from slotwise.explain.slot_explanation import Explanation
    from slotwise.explain.task_explanation import TaskExplanation
    from slotwise.model.records import RECURRING
    from slotwise.model.values import Value, json_value
    from slotwise.schedules.comparison import ScheduleComparison, compare_schedules
    from slotwise.schedules.description import (
        clock,
        describe_schedule,
        explain_schedule,
        zone_of,
    )
    from slotwise.schedules.outlook import OutlookEntry, outlook, slot_note
    from slotwise.store.operations.pauses import Pause
    from slotwise.store.operations.transaction import AuditEntry
    from slotwise.store.queue.queue import TaskInfo, TaskResult
    from slotwise.store.queue.task_filter import TaskFilter
    from slotwise.store.reading.database import (
        DatabaseInfo,
        SnapshotHolder,
    )
    from slotwise.store.reading.failures import Failure
    from slotwise.store.reading.finish import FinishForecast
    from slotwise.store.reading.health import Health, Unreadable
    from slotwise.store.reading.histories import DeployInfo, WorkerLife
    from slotwise.store.reading.jobs import JobInfo
    from slotwise.store.reading.monitoring import Backlog, SinceSuccess, Trouble
    from slotwise.store.reading.rates import JobRates, Rate
    from slotwise.store.reading.schedule_spans import ScheduleSpan
    from slotwise.store.reading.slots import AttemptInfo, SlotInfo
    from slotwise.store.reading.task_counts import TaskCount
    from slotwise.store.reading.windows import (
        OutcomeCount,
        OutcomePart,
        OutcomeTotal,
        SlotWindow,
    )
    from slotwise.store.reading.workers import WorkerInfo

_HOMES = {
    "slotwise.explain.job_explanation": ("JobExplanation",),
    "slotwise.explain.slot_explanation": ("Explanation",),
    "slotwise.explain.task_explanation": ("TaskExplanation",),
    "slotwise.client.inspection": ("AsyncInspection", "Inspection"),
    "slotwise.model.records": ("RECURRING",),
    "slotwise.model.values": ("Value", "json_value"),
    "slotwise.schedules.comparison": ("ScheduleComparison", "compare_schedules"),
    "slotwise.schedules.description": (
        "clock",
        "describe_schedule",
        "explain_schedule",
        "zone_of",
    ),
    "slotwise.schedules.outlook": ("OutlookEntry", "outlook", "slot_note"),
    "slotwise.store.operations.pauses": ("Pause",),
    "slotwise.store.operations.transaction": ("AuditEntry",),
    "slotwise.store.queue.queue": ("TaskInfo", "TaskResult"),
    "slotwise.store.queue.task_filter": ("TaskFilter",),
    "slotwise.store.reading.database": ("DatabaseInfo", "SnapshotHolder"),
    "slotwise.store.reading.failures": ("Failure",),
    "slotwise.store.reading.finish": ("FinishForecast",),
    "slotwise.store.reading.health": ("Health", "Unreadable"),
    "slotwise.store.reading.histories": ("DeployInfo", "WorkerLife"),
    "slotwise.store.reading.jobs": ("JobInfo",),
    "slotwise.store.reading.rates": ("JobRates", "Rate"),
    "slotwise.store.reading.schedule_spans": ("ScheduleSpan",),
    "slotwise.store.reading.slots": ("AttemptInfo", "SlotInfo"),
    "slotwise.store.reading.monitoring": ("Backlog", "SinceSuccess", "Trouble"),
    "slotwise.store.reading.task_counts": ("TaskCount",),
    "slotwise.store.reading.windows": (
        "OutcomeCount",
        "OutcomePart",
        "OutcomeTotal",
        "SlotWindow",
    ),
    "slotwise.store.reading.workers": ("WorkerInfo",),
}
__all__ = [
    "RECURRING",
    "AsyncInspection",
    "AttemptInfo",
    "AuditEntry",
    "Backlog",
    "DatabaseInfo",
    "DeployInfo",
    "Explanation",
    "Failure",
    "FinishForecast",
    "Health",
    "Inspection",
    "JobExplanation",
    "JobInfo",
    "JobRates",
    "OutcomeCount",
    "OutcomePart",
    "OutcomeTotal",
    "OutlookEntry",
    "Pause",
    "Rate",
    "ScheduleComparison",
    "ScheduleSpan",
    "SinceSuccess",
    "SlotInfo",
    "SlotWindow",
    "SnapshotHolder",
    "TaskCount",
    "TaskExplanation",
    "TaskFilter",
    "TaskInfo",
    "TaskResult",
    "Trouble",
    "Unreadable",
    "Value",
    "WorkerInfo",
    "WorkerLife",
    "clock",
    "compare_schedules",
    "describe_schedule",
    "explain_schedule",
    "json_value",
    "outlook",
    "slot_note",
    "zone_of",
]


if not TYPE_CHECKING:
    __getattr__, __dir__ = late(__name__, _HOMES)
