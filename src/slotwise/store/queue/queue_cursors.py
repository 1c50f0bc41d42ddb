"""Queue cursors: how far each task and priority has been emptied, so that a claim need not begin
at the front.

Rows that were claimed leave dead entries at the front of the queue's index. While a snapshot is
held none of them can be removed, and each claim would walk through all of them. So a claim gets
the due time of the oldest row of the batch before, as a lower bound.

Races. A row may become visible before its cursor: its due time is that of the statement that
inserted it, and its transaction commits later, or it lies in the past; a hand-back, a retry or a
command puts it back there; another transaction had it locked during the claim. No clock can rule
these out, so:

- Once in ``LOOK_BACK`` there is a full look, without cursors, which finds the oldest rows first:
  such a row waits for no longer than that. It lowers its cursor, so that those behind it are found
  as well. A full look that takes long, because millions of dead entries lie there, is repeated
  only after ``SHARE`` times as long.
- A cursor counts only as long as each full look passes it. If a full look ended before it, with a
  full batch of what goes first, the cursor is dropped.
- Priorities that are not known yet have no cursor: a more urgent row is found at once.
- With cursors nothing is known to be empty: less than half a batch is followed by a full look.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from slotwise.jobs.definition import USUAL_PRIORITY
from slotwise.model.records import Claim
from slotwise.store.dialects.port import FIRST, LAST, Range

#: How long a row may stay before its cursor, in seconds.
LOOK_BACK = 1.0
#: A full look takes at most one part in so many of the time.
SHARE = 10
#: With more queues than that, cursors cost more than they spare.
MOST = 64

_Queue = tuple[str, int]


class QueueCursors:
    """The cursors of one poller."""

    def __init__(self) -> None:
        self._since: dict[_Queue, datetime] = {}
        self._until: float | None = None

    def are_good(self, elapsed: float) -> bool:
        """Whether a claim may begin at the cursors; else a full look is due."""
        return self._until is not None and elapsed < self._until

    def ranges(self, names: Sequence[str], *, full: bool) -> list[Range]:
        """Return what a claim searches, task by task; a full look names known queues, to skip
        their dead entries.
        """
        if len(self._since) > MOST:
            return list(map(Range, names))
        return [one for name in names for one in self._ranges_of(name, full=full)]

    def _ranges_of(self, name: str, *, full: bool) -> list[Range]:
        found = []
        first = FIRST
        for rank in sorted(rank for task, rank in self._since if task == name):
            if first < rank:
                found.append(Range(name, first, rank - 1))
            found.append(
                Range(name, rank, rank, None if full else self._since[name, rank])
            )
            first = rank + 1
        return [*found, Range(name, first, LAST)]

    def found(self, claims: Sequence[Claim], limit: int) -> None:
        """Record what a claim with cursors has claimed, in its order."""
        self._since |= _oldest(claims)
        if len(claims) * 2 < limit:
            self._until = None

    def looked(
        self,
        names: Sequence[str],
        claims: Sequence[Claim],
        limit: int,
        began: float,
        ended: float,
        left_out: Collection[str] = (),
    ) -> None:
        """Record what a full look has claimed, and when it began and ended, in elapsed seconds.

        ``left_out``: tasks that it may not have searched. Their cursors are dropped.
        """
        seen = _oldest(claims)
        turns = {name: place for place, name in enumerate(names)}
        reached = (LAST, len(turns))
        if len(claims) >= limit:
            reached = max((rank, turns[name]) for name, rank in seen)
        known = self._since if len(self._since) <= MOST else {}
        kept = {
            (name, rank): since
            for (name, rank), since in known.items()
            if name in turns
            and name not in left_out
            and (rank, turns[name]) <= reached
        }
        self._since = kept | seen
        is_busy = len(claims) * 2 >= limit and len(self._since) <= MOST
        self._until = (
            began + max(LOOK_BACK, SHARE * (ended - began)) if is_busy else None
        )


def _oldest(claims: Sequence[Claim]) -> dict[_Queue, datetime]:
    found: dict[_Queue, datetime] = {}
    for claim in claims:
        row = claim.row
        queue = (
            row.task_name,
            -(USUAL_PRIORITY if row.priority is None else row.priority),
        )
        if queue not in found:
            found[queue] = row.execution_time
    return found
