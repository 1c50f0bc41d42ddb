"""Low watermarks: how far the queue has been emptied, for each task and priority, so that a claim need not begin there.

Rows that were claimed leave dead entries at the front of the queue's index, and while anybody holds a snapshot none of
them can be removed: each claim would walk through all that was claimed since. So a claim is given the due time of the
oldest row of the batch before, as a lower bound.

Races. A row may become visible behind the mark: its due time is that of the statement that inserted it, and its
transaction commits later, or it was given an instant of the past; a hand-back, a retry or a command on it puts it back
there; somebody had it locked when the claim went by. No clock can rule these out, so:

- Once in ``LOOK_BACK`` there is a full look, without a mark, and it finds the oldest rows first: such a row waits for
  no longer than that. It lowers its mark, so that those behind it are found, too. A full look that takes long, because
  millions of dead entries lie there, is repeated only after ``SHARE`` times as long: such a row waits for that time.
- A mark counts only as long as each full look comes by it. One that ended before it, with a full batch of what goes
  first, has not seen what lies there: that mark is dropped.
- Priorities that are not known yet have no mark: a more urgent row is found at once.
- With marks nothing is said to be empty: what does not fill half a batch is followed by a full look.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from slotwise.jobs.declaration import USUAL_PRIORITY
from slotwise.model.records import Claim

#: How long a row may stay behind a mark, in seconds.
LOOK_BACK = 1.0
#: A full look takes at most one part in so many of the time.
SHARE = 10
#: With more queues than that, to ask for each costs more than marks spare.
MOST = 64
#: Ranks are priorities, negated.
FIRST, LAST = -(2**31), 2**31 - 1

_Queue = tuple[str, int]


class Range(NamedTuple):
    """Ranks of a task that a claim looks through; where it is one alone, from those due at ``since`` on."""

    task_name: str
    first: int
    last: int
    since: datetime | None = None


def whole(name: str) -> Range:
    """All of a task, from the beginning."""
    return Range(name, FIRST, LAST)


class QueueCursors:
    """What one poller knows of its queues."""

    def __init__(self) -> None:
        self._since: dict[_Queue, datetime] = {}
        self._until: float | None = None

    def are_good(self, elapsed: float) -> bool:
        """Whether a claim may begin at the marks; else a full look is due."""
        return self._until is not None and elapsed < self._until

    def ranges(self, names: Sequence[str], *, full: bool) -> list[Range]:
        """What a claim looks through, task by task.

        In a full look, too, the queues that are known are named: to find them again leads through their dead entries.
        """
        if len(self._since) > MOST:
            return list(map(whole, names))
        return [one for name in names for one in self._ranges_of(name, full=full)]

    def _ranges_of(self, name: str, *, full: bool) -> list[Range]:
        found, first = [], FIRST
        for rank in sorted(rank for task, rank in self._since if task == name):
            if first < rank:
                found.append(Range(name, first, rank - 1))
            found.append(Range(name, rank, rank, None if full else self._since[name, rank]))
            first = rank + 1
        return [*found, Range(name, first, LAST)]

    def found(self, claims: Sequence[Claim], limit: int) -> None:
        """A claim with marks has brought these, in its order."""
        self._since |= _oldest(claims)
        if len(claims) * 2 < limit:
            self._until = None

    def looked(self, names: Sequence[str], claims: Sequence[Claim], limit: int, began: float, ended: float) -> None:
        """A full look has brought these; when it began and ended, in elapsed seconds."""
        seen, turns = _oldest(claims), {name: place for place, name in enumerate(names)}
        reached = max((rank, turns[name]) for name, rank in seen) if len(claims) >= limit else (LAST, len(turns))
        known = self._since if len(self._since) <= MOST else {}
        kept = {
            (name, rank): since
            for (name, rank), since in known.items()
            if name in turns and (rank, turns[name]) <= reached
        }
        self._since = kept | seen
        is_busy = len(claims) * 2 >= limit and len(self._since) <= MOST
        self._until = began + max(LOOK_BACK, SHARE * (ended - began)) if is_busy else None


def _oldest(claims: Sequence[Claim]) -> dict[_Queue, datetime]:
    """The due time of the first of each queue."""
    found: dict[_Queue, datetime] = {}
    for claim in claims:
        row = claim.row
        queue = row.task_name, -(USUAL_PRIORITY if row.priority is None else row.priority)
        if queue not in found:
            found[queue] = row.execution_time
    return found
