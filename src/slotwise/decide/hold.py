"""Until when a job was held, and which slots came due after that, while nobody held it.

A job is held from an attempt's claim to the end of its handler, or to the last heartbeat of a claim that was lost. A
retry, a snooze or a queued slot that waits holds it until one poll interval after it is due. Overlap decides about
slots that came due while the job was held; later ones are catch-up's. ``unheld_since`` is where the two meet. It is
written when a row is let go, ahead of time, and judged when the next attempt ends; a claim never writes it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from slotwise.jobs.definition import Definition
from slotwise.model.records import TICK, LedgerEntry, Row
from slotwise.model.vocabulary import Origin
from slotwise.schedules import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What the end of an attempt is decided from, beside its row and its outcome."""

    definition: Definition
    schedule: Schedule | None
    ledger: LedgerEntry | None
    now: datetime
    #: The end of the handler, or the last heartbeat of a claim that was lost.
    held_until: datetime
    #: The poll interval of the worker that lets the row go.
    poll: timedelta

    @property
    def began(self) -> datetime | None:
        """When the attempt started."""
        return self.ledger.started if self.ledger else None

    def spaced(self, due: datetime) -> datetime:
        """``due``, or as much later as ``min_interval`` asks after the start of this attempt."""
        least = self.definition.min_interval
        return due if least is None or self.began is None else max(due, self.began + least)

    def waiting(self, row: Row, due: datetime, since: datetime | None = None) -> dict[str, Any]:
        """The columns of a row that waits for another attempt, or with a slot that was kept.

        It holds its job meanwhile, unless nobody has held that ``since``.
        """
        due = self.spaced(due)
        if not row.is_plan or self.schedule is None or self.schedule.from_end:
            return {"execution_time": due}
        return {"execution_time": due, "unheld_since": row.unheld_since or since or max(due, self.now) + self.poll}

    def judged(self, row: Row) -> Row:
        """The held row, with ``unheld_since`` only if an undecided slot came due after it and before this attempt.

        In a catch-up that runs all slots, those are more of its tail.
        """
        since, schedule = row.unheld_since, self.schedule
        if since is None:
            return row
        is_tail = is_catching_up(row, self.definition)
        decided = (row.slot, row.watermark, row.catch_up_until if is_tail else None)
        base, newest = max((one for one in decided if one is not None), default=None), None
        if base is not None and self.began is not None and schedule is not None:
            newest = newest_come(schedule, base, self.began - TICK)
        if newest is None or base is None or schedule is None or newest + schedule.wait(newest) <= since:
            return replace(row, unheld_since=None)
        if not is_tail:
            return row
        return replace(row, unheld_since=None, catch_up_until=newest_come(schedule, base, self.now))


def is_catching_up(row: Row, definition: Definition) -> bool:
    """Whether the row's slot is one of several that were missed, and that all run in this row."""
    runs_all = definition.catch_up.mode == "all" and not definition.overlap.detaches
    return runs_all and row.origin == Origin.CATCH_UP and row.catch_up_until is not None


def newest_come(schedule: Schedule, base: datetime, until: datetime) -> datetime | None:
    """The newest slot after ``base`` that was due by ``until``; None: there is none."""
    if schedule.from_end:
        return None
    return schedule.running.latest_before(until - schedule.wait(base) + TICK, floor=base)


def moved(row: Row, due: datetime) -> dict[str, Any]:
    """The columns of a waiting row that will be due at another time: if it holds its job until then, it still does."""
    before, since = row.due, row.unheld_since
    if since is not None and since >= before:
        since += due - before
    return {"execution_time": due, "unheld_since": since}
