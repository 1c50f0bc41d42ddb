"""How fast one-time tasks come due and end, from the recent counts and the rows that are due."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import sqlalchemy as sa

from slotwise.model.vocabulary import ENDED_BADLY, Outcome
from slotwise.store.reading.queries import ReadTransaction
from slotwise.store.schema.rows import utc
from slotwise.store.slots.counts import HOUR, RECENT

#: Without a backlog, and with one that is younger, a pace is that of so long.
SHORTEST = timedelta(minutes=5)
#: What ended before this time is counted, unless a worker counts late.
LAG = timedelta(minutes=2)
#: Counts that are nearer to each other say too little: many workers count in a minute.
FEWEST = timedelta(seconds=50)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How many tasks of a name have ended from ``began`` on, in the time ``span``, and how many
    attempts have failed. ``window`` is the time that was looked at. While ``began`` is None, it
    is too early to say; ``ended`` is then what is known.

    A worker counts once a minute what has ended since it last counted. So the first count tells
    when the work had begun, and those after it how fast it goes.
    """

    ended: int = 0
    failed: int = 0
    window: timedelta = SHORTEST
    span: timedelta = timedelta(0)
    began: datetime | None = None

    @property
    def out(self) -> float:
        """How many succeed in an hour; 0 while it is too early to say."""
        return self.ended * (HOUR / self.span) if self.span else 0.0

    def left(self, due: int) -> timedelta | None:
        """In which time those that are due will have ended; None if none ends, or if it is too
        early to say.
        """
        return self.span * due / self.ended if self.span and self.ended else None


_RECENT = f"""
SELECT task_name, hour, outcome, count FROM {{counts}}
WHERE hour >= :begin AND hour <= :now AND kind = '{RECENT}' AND task_name IN :names"""


def paces(
    at: ReadTransaction, now: datetime, oldest: Mapping[str, datetime | None]
) -> dict[str, Pace]:
    """Return the pace of each of these tasks since its oldest one came due: at least of the last
    five minutes, and at most of the last hour.
    """
    if not oldest:
        return {}
    given = {"begin": now - HOUR, "now": now, "names": list(oldest)}
    found = defaultdict[str, list[sa.RowMapping]](list)
    for row in at.read(_RECENT, given):
        found[row["task_name"]].append(row)
    return {task: _pace(found[task], since, now) for task, since in oldest.items()}


def _pace(
    rows: Sequence[sa.RowMapping], since: datetime | None, now: datetime
) -> Pace:
    window = min(max(now - (since or now), SHORTEST), HOUR)
    counted = [row for row in rows if utc(row["hour"]) >= now - window]
    times = sorted({utc(row["hour"]) for row in counted})
    if not times or times[-1] - times[0] < FEWEST:
        return replace(_pace_of(counted), window=window)
    later = [row for row in counted if utc(row["hour"]) > times[0]]
    span = max(times[-1], now - LAG) - times[0]
    return replace(_pace_of(later), window=window, span=span, began=times[0])


def _pace_of(rows: Sequence[sa.RowMapping]) -> Pace:
    ended = [row["count"] for row in rows if row["outcome"] == Outcome.SUCCEEDED]
    failed = [row["count"] for row in rows if row["outcome"] in ENDED_BADLY]
    return Pace(ended=sum(ended), failed=sum(failed))
