"""How fast one-time tasks come due and end, from the hourly counts and the rows that are due."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

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
    found = defaultdict[str, list[sa.RowMapping]](list)
    for row in at.read(_ENDED, given, of_name=of_name):
        found[row["task_name"]].append(row)
    return {task: _pace(rows, now) for task, rows in found.items()}


def _pace(rows: Sequence[sa.RowMapping], now: datetime) -> Pace:
    first = min(utc(row["hour"]) for row in rows)
    ended = [row["number"] for row in rows if row["outcome"] == Outcome.SUCCEEDED]
    failed = [row["number"] for row in rows if row["outcome"] in ENDED_BADLY]
    return Pace(ended=int(sum(ended)), failed=int(sum(failed)), span=now - first)


def no_pace(now: datetime) -> Pace:
    """Return the pace of a task that has no counts."""
    return Pace(span=now - hour_of(now) + HOUR)
