"""``slotwise tasks``: list one-time tasks, and schedule, reschedule, retry, cancel them."""

from __future__ import annotations

from typing import Final

import click

from slotwise.cli.shared.options import (
    Group,
    common,
)
from slotwise.cli.task_listings import list_tasks
from slotwise.cli.task_operations import (
    cancel_tasks,
    reschedule_task,
    retry_tasks,
    schedule_task,
)

_REMOVE: Final = (
    "to cancel tasks: slotwise tasks cancel NAME ID, "
    "or all that are dead: --state dead"
)


@click.group(
    cls=Group,
    default=("list", "--count"),
    guesses={
        **dict.fromkeys(("delete", "remove", "purge", "clear", "rm", "kill"), _REMOVE),
        **dict.fromkeys(
            ("enqueue", "add", "run", "send"),
            "write: slotwise tasks schedule NAME --data JSON",
        ),
        **dict.fromkeys(
            ("redrive", "requeue", "rerun"), "write: slotwise tasks retry NAME"
        ),
        "show": "write: slotwise tasks list NAME ID",
        "count": "write: slotwise tasks",
    },
    examples="""
    slotwise tasks                                 how many wait, run, are dead, by name
    slotwise tasks list --state dead
    slotwise tasks list send-mail welcome-42
    slotwise tasks retry send-mail --dry-run
    """,
)
@common
def tasks() -> None:
    """List, schedule, retry and cancel one-time tasks."""


for _command in (
    list_tasks,
    schedule_task,
    reschedule_task,
    retry_tasks,
    cancel_tasks,
):
    tasks.add_command(_command)
