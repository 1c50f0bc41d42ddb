"""The arguments of operations, checked."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta

from slotwise.client.arguments import AnyTask, instant_of, name_of
from slotwise.client.scoped_items import checked_label
from slotwise.errors import ConfigurationError
from slotwise.model.records import is_whole
from slotwise.model.vocabulary import TASK_STATES, Missed
from slotwise.store.operations.instance_operations import (
    ChosenInstances,
    InstanceFilter,
)
from slotwise.store.operations.pauses import Window
from slotwise.store.operations.task_operations import Chosen
from slotwise.store.queue.task_filter import TaskFilter


def chosen_tasks(
    call: str,
    task: AnyTask,
    state: str | None,
    where: TaskFilter | None,
    limit: int | None,
) -> Chosen:
    """Check the arguments of an operation on tasks."""
    if state is not None and state not in TASK_STATES:
        raise ConfigurationError(
            f"{call}(state={state!r}): expected {', '.join(TASK_STATES)}"
        )
    if limit is not None and not is_whole(limit, 1):
        raise ConfigurationError(f"{call}(limit={limit!r}): expected 1 or more")
    return Chosen(
        name=name_of(task), state=state, where=where or TaskFilter(), most=limit
    )


def window_of(until: datetime | timedelta | None, *, replay: bool) -> Window:
    end = instant_of(until) if isinstance(until, datetime) else until
    return Window(until=end, missed=Missed.CATCH_UP if replay else Missed.SKIP)


def overlap_rule(given: str) -> str | None:
    if given not in ("beside", "queue", "skip"):
        raise ConfigurationError(
            f"trigger(overlap={given!r}): write 'beside', 'queue' or 'skip'"
        )
    return None if given == "beside" else given


def chosen_instances(verb: str, job: AnyTask, where: object) -> ChosenInstances:
    """Return the instances of this filter. Raise ConfigurationError for an empty one."""
    name = name_of(job)
    if not isinstance(where, InstanceFilter) or where == InstanceFilter():
        raise ConfigurationError(
            f"{verb}({name!r}, {where!r:.60}): say which instances, for example "
            "InstanceFilter(scope='crm'); pause, resume and delete are for the whole job"
        )
    for what, given in asdict(where).items():
        if given is not None:
            checked_label(what, given)
    return ChosenInstances(job=name, where=where)
