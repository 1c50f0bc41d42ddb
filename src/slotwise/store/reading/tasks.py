"""Due one-time tasks that no live worker takes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime

from slotwise.model.vocabulary import ListedState
from slotwise.store.queue.queue import TaskInfo
from slotwise.store.reading.jobs import jobs_among
from slotwise.store.reading.routing import UNDER_A_JOB, obstacle, state_of_stuck
from slotwise.store.reading.task_counts import TaskCount
from slotwise.store.reading.workers import all_workers
from slotwise.store.slots.store import Store


def stranded(store: Store, names: Collection[str]) -> dict[str, str]:
    """Return those of these one-time tasks that no live worker takes, each with the reason."""
    workers = all_workers(store)
    under_jobs = jobs_among(store, names)
    found = {
        name: UNDER_A_JOB if name in under_jobs else obstacle(name, (), workers)
        for name in names
    }
    return {name: why for name, why in found.items() if why is not None}


def with_reasons(store: Store, lines: Sequence[TaskInfo]) -> list[TaskInfo]:
    """Return these tasks; those that are due and that no live worker takes with that state and
    the reason.
    """
    if not any(line.state == ListedState.WAITING for line in lines):
        return list(lines)
    now = store.now()
    due = {line.task for line in lines if _is_due(line, now)}
    reasons = stranded(store, due) if due else {}
    return [
        replace(line, state=state_of_stuck(reasons[line.task]), reason=reasons[line.task])
        if _is_due(line, now) and line.task in reasons
        else line
        for line in lines
    ]


def _is_due(line: TaskInfo, now: datetime) -> bool:
    return line.state == ListedState.WAITING and line.due is not None and line.due <= now


def counts_with_reasons(store: Store, lines: Sequence[TaskCount]) -> list[TaskCount]:
    """Return these counts; those of due tasks that no live worker takes with the reason."""
    now = store.now()
    due = {
        line.task for line in lines if line.next_due is not None and line.next_due <= now
    }
    reasons = stranded(store, due)
    return [replace(line, reason=reasons.get(line.task)) for line in lines]
