"""How fast one-time tasks come due and end, from the hourly counts and the rows that are due."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from slotwise.model.vocabulary import ENDED_BADLY, Outcome
from slotwise.store.reading.queries import ReadTransaction
from slotwise.store.schema.rows import utc
from slotwise.store.slots.counts import HOUR, hour_of

#: Tasks that have been due for less are no backlog.
BACKLOG = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How many tasks of a name have ended in a time, and how many attempts have failed."""

    ended: int = 0
    failed: int = 0
    span: timedelta

    @property
    def out(self) -> float:
        """How many succeed in an hour."""
        return self.ended * (HOUR / self.span) if self.span else 0.0

    def left(self, due: int) -> timedelta | None:
        """In which time those that are due will have ended; None if none ends."""
        return self.span * due / self.ended if self.ended else None


def came_per_hour(due: int, oldest: datetime | None, now: datetime) -> float | None:
    """Return how many come due in an hour; None if those that are due are no backlog.

    The one that has waited longest is claimed first. So all that came due after it still wait.
    """
    if oldest is None or now - oldest < BACKLOG:
        return None
    return due * (HOUR / (now - oldest))


_ENDED = """
SELECT task_name, outcome, {f}sum(count + pruned) AS number, {f}min(hour) AS hour
FROM {counts} WHERE hour >= :begin AND hour < :now AND kind = 'task'{of_name}
GROUP BY task_name, outcome"""


def paces(
    at: ReadTransaction, now: datetime, name: str | None = None
) -> dict[str, Pace]:
    """Return the pace of each task that has ended since the beginning of the hour before, or
    since that of its counts.
    """
    given = {"begin": hour_of(now) - HOUR, "now": now, "name": name}
    of_name = "" if name is None else " AND task_name = :name"
    ended = dict[str, int]()
    failed = dict[str, int]()
    first = dict[str, datetime]()
    for row in at.read(_ENDED, given, of_name=of_name):
        task = row["task_name"]
        first[task] = min(first.get(task, now), utc(row["hour"]))
        if row["outcome"] == Outcome.SUCCEEDED:
            ended[task] = int(row["number"])
        elif row["outcome"] in ENDED_BADLY:
            failed[task] = failed.get(task, 0) + int(row["number"])
    return {
        task: Pace(
            ended=ended.get(task, 0), failed=failed.get(task, 0), span=now - begin
        )
        for task, begin in first.items()
    }


def no_pace(now: datetime) -> Pace:
    """Return the pace of a task that has no counts."""
    return Pace(span=now - hour_of(now) + HOUR)
