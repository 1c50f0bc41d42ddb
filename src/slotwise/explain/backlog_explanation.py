"""Explain how many one-time tasks of a name wait, what holds them back, and for how long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from slotwise.explain.due_times import until_due
from slotwise.explain.sentences import paused_by, when
from slotwise.explain.task_explanation import TaskExplanation
from slotwise.model.durations import short_duration
from slotwise.model.vocabulary import ENDED_BADLY, ListedState, Outcome
from slotwise.store.reading.facts import task_facts
from slotwise.store.reading.foreign import foreign_rows, told_foreign
from slotwise.store.reading.task_counts import MOST, DueTasks, due_tasks
from slotwise.store.reading.windows import outcome_counts
from slotwise.store.slots.counts import HOUR, TASK, hour_of
from slotwise.store.slots.store import Store


@dataclass(frozen=True, slots=True)
class _Pace:
    """How many tasks have ended in a time, and how many attempts have failed."""

    ended: int
    failed: int
    span: timedelta


def explain_backlog(store: Store, task: str) -> TaskExplanation:
    """Explain all tasks of a name; the ``id`` is empty."""
    found = due_tasks(store, task)
    pace = _pace(store, task, store.now())
    sentences = [*_waiting(found), *_obstacles(store, task, found), *_told(pace, found)]
    sentences += _beside(store, task)
    state: str = ListedState.WAITING
    if found.running and not found.due:
        state = ListedState.RUNNING
    return TaskExplanation(task=task, id="", state=state, sentences=tuple(sentences))


def _waiting(found: DueTasks) -> Iterator[str]:
    more = "more than " if found.due > MOST else ""
    due = min(found.due, MOST)
    since = "" if found.oldest is None else f", the oldest since {when(found.oldest)}"
    yield f"{more}{due:,} tasks are due{since}; {found.running:,} run."


def _obstacles(store: Store, task: str, found: DueTasks) -> Iterator[str]:
    """Say what holds back one of those that are due."""
    if found.id is None:
        return
    facts = task_facts(store, task, found.id)
    if facts.all_paused is not None:
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


def _pace(store: Store, task: str, now: datetime) -> _Pace:
    """Return the pace since the beginning of the hour before, or since that of the counts."""
    begin = hour_of(now) - HOUR
    counts = outcome_counts(store, begin, now, job=task, kind=TASK)
    ended = sum(one.count for one in counts if one.outcome == Outcome.SUCCEEDED)
    failed = sum(one.count for one in counts if one.outcome in ENDED_BADLY)
    first = min((one.hour for one in counts), default=begin)
    return _Pace(ended, failed, now - first)


def _told(pace: _Pace, found: DueTasks) -> Iterator[str]:
    if not pace.ended:
        yield f"None has succeeded in the last {short_duration(pace.span)}."
        return
    failed = f", and {pace.failed:,} attempts failed" if pace.failed else ""
    yield f"In the last {short_duration(pace.span)}, {pace.ended:,} succeeded{failed}."
    if found.due and found.due <= MOST:
        left = pace.span * found.due / pace.ended
        yield f"At this rate, those that are due end in {short_duration(left)}."
