"""Explain how many one-time tasks of a name wait, what holds them back, and for how long."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from slotwise.explain.due_times import until_due
from slotwise.explain.sentences import counted, paused_by, when
from slotwise.explain.task_explanation import TaskExplanation
from slotwise.model.durations import short_duration
from slotwise.model.vocabulary import ListedState
from slotwise.store.reading.facts import task_facts
from slotwise.store.reading.foreign import foreign_rows, told_foreign
from slotwise.store.reading.jobs import instance_counts
from slotwise.store.reading.queries import reading
from slotwise.store.reading.task_counts import MOST, DueTasks, came_per_hour, due_tasks
from slotwise.store.reading.task_pace import Pace, paces
from slotwise.store.slots.counts import HOUR
from slotwise.store.slots.store import Store


def explain_backlog(store: Store, task: str) -> TaskExplanation:
    """Explain all tasks of a name; the ``id`` is empty."""
    found = due_tasks(store, task)
    with reading(store) as at:
        now = at.now()
        pace = paces(at, now, {task: found.oldest})[task]
        came = came_per_hour(at, task, pace, found.oldest, now)
    sentences = [
        *_waiting(found),
        *_obstacles(store, task, found),
        *_told(pace, found, came),
        *_beside(store, task),
    ]
    state: str = ListedState.WAITING
    if found.running and not found.due:
        state = ListedState.RUNNING
    return TaskExplanation(task=task, id="", state=state, sentences=tuple(sentences))


def _waiting(found: DueTasks) -> Iterator[str]:
    more = "more than " if found.due > MOST else ""
    due = min(found.due, MOST)
    since = "" if found.oldest is None else f", the oldest since {when(found.oldest)}"
    verb = "is" if due == 1 else "are"
    yield f"{more}{counted(due, 'task')} {verb} due{since}; running: {found.running:,}."


def _obstacles(store: Store, task: str, found: DueTasks) -> Iterator[str]:
    """Say what holds back one of those that are due."""
    if found.id is None:
        return
    facts = task_facts(store, task, found.id)
    if facts.all_paused is not None or facts.pause is not None:
        yield paused_by(facts)
    elif facts.row is not None and not facts.row.picked and facts.row.due <= facts.now:
        _, *reasons = until_due(facts, facts.row)
        yield from (
            reason.replace("holds it back", "holds them back") for reason in reasons
        )


def _beside(store: Store, task: str) -> Iterator[str]:
    with store.database.main.connect() as connection:
        found = foreign_rows(connection, store.tables, {task})
    for name, count in found.items():
        yield f"Beside them, {told_foreign(name, count)}."
    # Of all names, only few come after all but the last letter and up to the name.
    counts = instance_counts(store, after=task[:-1], until=task)
    if number := counts.get(task):
        listed = shlex.join(["slotwise", "jobs", task, "--instances"])
        yield f"Beside them, {task} has {counted(number, 'recurring instance')}: {listed}"


def _told(pace: Pace, found: DueTasks, came: float | None) -> Iterator[str]:
    if not pace.ended:
        window = short_duration(pace.window)
        yield f"No success is counted in the last {window}; workers count once a minute."
        return
    if not pace.span:
        yield "It is too early to say how fast they end: workers count once a minute."
        return
    span = short_duration(pace.span)
    failed = f", and {counted(pace.failed, 'attempt')} failed" if pace.failed else ""
    yield f"In {span}, as far as is counted, {pace.ended:,} succeeded{failed}."
    left = pace.left(found.due)
    if found.due and found.due <= MOST and left is not None:
        yield f"At this rate, those that are due end in {short_duration(left)}."
        if came is not None:
            yield from _outlook(pace, found, came)


def _outlook(pace: Pace, found: DueTasks, came: float) -> Iterator[str]:
    """Say how many come due meanwhile, and whether the backlog shrinks."""
    rates = f"{came:,.0f} come due in an hour, and {pace.out:,.0f} succeed"
    if came >= pace.out:
        yield f"About {rates}: the backlog does not shrink."
        return
    until = short_duration(HOUR * (found.due / (pace.out - came)))
    yield f"About {rates}: the backlog is gone in {until}."
