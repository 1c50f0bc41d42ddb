"""When a walk ends early, and how long it pauses between two batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from slotwise import InvalidSetting
from slotwise.spi import parse_duration

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

#: How often a condition is looked at again while it makes a walk wait, in seconds.
LOOK_AGAIN: Final = 1.0

_LAG: Final = sa.text(
    "SELECT coalesce(pg_catalog.max(greatest(replay_lag, flush_lag, write_lag)), interval '0')"
    " FROM pg_catalog.pg_stat_replication"
)


@dataclass(frozen=True, slots=True)
class Pacing:
    """``time_budget``: a duration from the begin of the attempt, or an instant. ``pause``: between
    two batches. ``rate``: rows a second at most. ``wait_while``: no batch begins while it is true.
    """

    time_budget: timedelta | datetime | None = None
    max_batches: int | None = None
    pause: timedelta = timedelta(0)
    rate: float | None = None
    wait_while: Callable[[], bool] | None = None

    @property
    def is_bounded(self) -> bool:
        return self.time_budget is not None or self.max_batches is not None

    def seconds(self, now: Callable[[], datetime]) -> float:
        """Return how long batches may begin from now on, by the database's clock."""
        match self.time_budget:
            case timedelta() as budget:
                return budget.total_seconds()
            case datetime() as end:
                return (end - now()).total_seconds()
        return math.inf

    def pause_after(self, rows: int, took: float) -> float:
        """Return how many seconds to pause after a batch of so many rows."""
        pause = self.pause.total_seconds()
        if self.rate is not None:
            pause = max(pause, rows / self.rate - took)
        return pause


def pacing(
    *,
    time_budget: timedelta | str | datetime | None,
    max_batches: int | None,
    pause: timedelta | str | None,
    rate: str | None,
    wait_while: Callable[[], bool] | None,
) -> Pacing:
    """Return the pacing as it is declared. Raises InvalidSetting."""
    if max_batches is not None and (type(max_batches) is not int or max_batches < 1):
        raise InvalidSetting(
            f"max_batches={max_batches!r}: expected a whole number, 1 or more"
        )
    return Pacing(
        time_budget=_budget(time_budget),
        max_batches=max_batches,
        pause=timedelta(0) if pause is None else parse_duration(pause),
        rate=None if rate is None else rows_a_second(rate),
        wait_while=wait_while,
    )


def _budget(given: timedelta | str | datetime | None) -> timedelta | datetime | None:
    if isinstance(given, datetime) and given.tzinfo is None:
        raise InvalidSetting(
            f"time_budget={given.isoformat()} has no offset; pass an aware datetime"
        )
    if given is None or isinstance(given, datetime):
        return given
    return parse_duration(given)


def rows_a_second(text: str) -> float:
    """Parse ``"5000/s"`` or ``"100000/m"``. Raises InvalidSetting."""
    count, _, span = text.partition("/")
    try:
        window = parse_duration(span if span[:1].isdigit() else f"1{span}")
        rate = int(count) / window.total_seconds()
    except (ValueError, InvalidSetting, ZeroDivisionError):
        rate = 0.0
    if rate <= 0:
        raise InvalidSetting(
            f'rate={text!r:.60}: write rows and a period: "5000/s", "100000/m"'
        )
    return rate


def replica_is_behind(
    engine: Engine, by: timedelta | str = "10s"
) -> Callable[[], bool]:
    """Return a condition for ``wait_while``: whether a replica of PostgreSQL is behind by more.

    It asks the primary, whose role needs ``pg_monitor`` to see the replicas of other roles.
    """
    limit = parse_duration(by)

    def is_behind() -> bool:
        with engine.connect() as connection:
            lag: timedelta = connection.execute(_LAG).scalar_one()
        return lag > limit

    return is_behind
