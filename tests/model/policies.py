"""The policies that a job declares: functions from lists of slots to lists of slots."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import tenacity
from tests.model.timeline import Times

from slotwise import CatchUp, DistributedJob, Overlap, Retry, job

NOTHING = timedelta(0)


@dataclass
class Choice:
    """The choice among several due slots: the one that starts, those that run after it, and the
    skipped ones.
    """

    slot: datetime | None
    rest: list[datetime] = field(default_factory=list)
    skipped: dict[str, list[datetime]] = field(default_factory=dict)
    collapsed: int = 0


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The policies of one job. ``wait`` is how long after each slot its ``spread`` makes it
    due.
    """

    catching: str = "latest"
    grace: timedelta = timedelta(minutes=1)
    max: int | None = None
    window: timedelta | None = None
    pace: timedelta | None = None
    start_within: timedelta | None = None
    overlap: str = "skip"
    most: int = 1
    gives_up: bool = False
    max_lost: int = 3
    attempts: int = 1
    retry_pause: timedelta = timedelta(seconds=4)
    past: bool = False
    min_interval: timedelta | None = None
    spread: timedelta | None = None
    wait: timedelta = NOTHING

    @property
    def detaches(self) -> bool:
        return self.overlap in ("allow", "cancel_previous")

    @property
    def catches_all(self) -> bool:
        return self.catching == "all"

    def may_start(self, slot: datetime, now: datetime) -> bool:
        """Whether ``start_within`` lets the slot's first attempt start now."""
        return self.start_within is None or now - slot <= self.start_within

    def catches_up_on(self, slot: datetime, now: datetime) -> bool:
        """Whether ``all`` may still start the slot now: neither its ``window`` nor
        ``start_within`` has passed.
        """
        return self.may_start(slot, now) and (
            self.window is None or now - slot <= self.window
        )

    def retry(self, tries: int) -> timedelta | None:
        return self.retry_pause if tries < self.attempts else None

    def keep(self, come: list[datetime]) -> list[datetime]:
        """Rule 3: return the slots that overlap keeps, of those that came due while the job was
        held.
        """
        if self.overlap == "queue_all":
            return come
        return come[-self.most :] if self.overlap == "queue" else []

    def catch_up(self, come: list[datetime], now: datetime) -> Choice:
        """Rule 4: choose among the slots that have come. The newest of them may be on time."""
        limits = [self.start_within]
        if self.catching == "none":
            limits.append(self.grace)
        if self.catching == "all":
            limits.append(self.window)
        within = [limit for limit in limits if limit is not None]
        good = [slot for slot in come if all(now - slot <= limit for limit in within)]
        bad = [slot for slot in come if slot not in good]
        if not good:
            return Choice(None, skipped={"late": come})
        if self.catching == "none":
            return Choice(good[-1], skipped={"late": come[:-1]})
        if self.catching == "latest":
            return Choice(
                good[-1], skipped={"collapsed": come[:-1]}, collapsed=len(come) - 1
            )
        if self.catching == "first":
            return Choice(
                good[0],
                skipped={"late": bad, "collapsed": good[1:]},
                collapsed=len(good) - 1,
            )
        kept = good if self.max is None else good[-self.max :]
        dropped = [slot for slot in good if slot not in kept]
        return Choice(
            kept[0], rest=kept[1:], skipped={"late": bad, "collapsed": dropped}
        )

    def declare(self, name: str, times: Times) -> DistributedJob:
        """Return a job that declares these policies."""
        ways: dict[str, CatchUp] = {
            "none": CatchUp.none(grace=self.grace),
            "latest": CatchUp.latest(),
            "first": CatchUp.first(),
            "all": CatchUp.all(max=self.max, window=self.window, pace=self.pace),
        }
        overlaps = {
            "skip": Overlap.skip(),
            "queue": Overlap.queue(self.most),
            "queue_all": Overlap.queue_all(),
            "allow": Overlap.allow(self.most),
            "cancel_previous": Overlap.cancel_previous(),
        }
        retry = Retry(
            max_attempts=self.attempts,
            wait=tenacity.wait_fixed(self.retry_pause.total_seconds()),
            past_next_slot=self.past,
        )
        said: dict[str, Any] = {
            "catch_up": ways[self.catching],
            "overlap": overlaps[self.overlap],
            "max_lost": self.max_lost,
            "start_within": self.start_within,
            "min_interval": self.min_interval,
            "spread": self.spread,
            "on_lost": "give_up" if self.gives_up else "rerun",
            "retry": None if self.gives_up else retry,
        }
        return job(name=name, schedule=times.schedule, **said)(print)
