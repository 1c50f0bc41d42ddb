"""Change what the cluster does: every write of an operator, with its dry run and audit entry.

``Operations.open(settings)`` needs no application; ``registry.operations`` and
``client.operations`` are the same for the application's own tables. Each call returns what it did,
or with ``dry_run`` what it would do, and ``inspect.audit`` lists who has asked for it and why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotwise.model.exports import late

if TYPE_CHECKING:
    from slotwise.client.operations import AsyncOperations, Operations
    from slotwise.migrate.schema import Schema, SchemaUpgrade, SchemaVersion
    from slotwise.store.operations.backfill import Backfill
    from slotwise.store.operations.instance_operations import InstanceFilter
    from slotwise.store.operations.job_operations import (
        Epoch,
        Paused,
        Resumed,
        SettledJob,
    )
    from slotwise.store.operations.stacks import HandlerStack
    from slotwise.store.planning.calendars import (
        CalendarChange,
        CalendarFollower,
        CalendarInfo,
        Calendars,
    )
    from slotwise.store.planning.deploy_preview import DeployChange

_HOMES = {
    # jobs and slots
    "slotwise.client.operations": ("AsyncOperations", "Operations"),
    "slotwise.store.operations.backfill": ("Backfill",),
    "slotwise.store.operations.instance_operations": ("InstanceFilter",),
    "slotwise.store.operations.job_operations": (
        "Epoch",
        "Paused",
        "Resumed",
        "SettledJob",
    ),
    "slotwise.store.operations.stacks": ("HandlerStack",),
    # calendars
    "slotwise.store.planning.calendars": (
        "CalendarChange",
        "CalendarFollower",
        "CalendarInfo",
        "Calendars",
    ),
    # deploys and tables
    "slotwise.store.planning.deploy_preview": ("DeployChange",),
    "slotwise.migrate.schema": ("Schema", "SchemaUpgrade", "SchemaVersion"),
}
__all__ = [
    "AsyncOperations",
    "Backfill",
    "CalendarChange",
    "CalendarFollower",
    "CalendarInfo",
    "Calendars",
    "DeployChange",
    "Epoch",
    "HandlerStack",
    "InstanceFilter",
    "Operations",
    "Paused",
    "Resumed",
    "Schema",
    "SchemaUpgrade",
    "SchemaVersion",
    "SettledJob",
]


if not TYPE_CHECKING:
    __getattr__, __dir__ = late(__name__, _HOMES)
