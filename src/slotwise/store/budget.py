"""The budget of a recovery: at most so many slots that come late start in a second, in the whole cluster.

A start takes the next free place of a row of ``scheduled_meta``: an instant. If that has come, it starts; else its
row goes back, due at that instant and marked as having a place, so each row is put off once, however many wait.

Races. Whoever finds the meta row locked does not wait: its row comes up again in a moment, at an instant that is no
place, else it would start for nothing: places are whole milliseconds, that is none. A place that nobody used
within a quarter of a second has lapsed: else places that come due while all workers are busy, or the database is away,
would be used at once. Places lie a quarter further apart than the rate says: so also those of one second and a quarter,
used within one second, are no more than the rate.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import sqlalchemy as sa

from slotwise.execution import TICK, Row
from slotwise.store.dialect import Dialect
from slotwise.store.types import from_micros, to_micros

#: A first start that is later than this after it was due counts, as the runs of missed slots do.
LATE = timedelta(minutes=1)
_LAPSE = timedelta(milliseconds=250)
_BUSY = timedelta(milliseconds=200)
_KEY = "recovery_next"


class Budget:
    """``rate``: starts per second; None: no limit."""

    def __init__(self, dialect: Dialect, rate: int | None) -> None:
        self._dialect = dialect
        self._meta = dialect.tables.meta
        self._pause = None if rate is None else (timedelta(seconds=1) + _LAPSE) / rate

    def is_late(self, row: Row, now: datetime) -> bool:
        """Whether a slot whose next one has not come counts: it starts late, or is the last one of a catch-up.

        So does one in a row of its own that was handed back before it began.
        """
        if self._pause is None or row.attempt != 1:
            return False
        return row.origin == "catch_up" or (row.is_plan and row.execution_time + LATE < now)

    def put_off(self, connection: sa.Connection, row: Row, origin: str | None, now: datetime) -> datetime | None:
        """When the row's slot, which is to start for this ``origin``, may do so instead of now; None: now."""
        if self._pause is None or row.attempt != 1:
            return None
        if origin != "catch_up" and not self.is_late(row, now) and row.parked_due is None:
            return None
        has_place = row.parked_due is not None and row.execution_time == _whole(row.execution_time)
        if has_place and row.execution_time + _LAPSE > now:
            return None
        place = self._take_place(connection, now)
        return place if place > now else None

    def _take_place(self, connection: sa.Connection, now: datetime) -> datetime:
        assert self._pause is not None
        meta = self._meta
        first = self._dialect.insert(meta).values(key=_KEY, value=str(to_micros(now)))
        connection.execute(first.on_conflict_do_nothing())
        statement = sa.select(meta.c.value).where(meta.c.key == _KEY).with_for_update(skip_locked=True)
        found = connection.scalar(statement)
        if found is None:
            return _whole(now + _BUSY) + TICK
        place = max(from_micros(int(found)), now)
        following = str(to_micros(place + max(self._pause, TICK)))
        connection.execute(meta.update().where(meta.c.key == _KEY).values(value=following))
        return _whole(place)


def _whole(instant: datetime) -> datetime:
    """The millisecond that it lies in."""
    return instant.replace(microsecond=instant.microsecond // 1000 * 1000)
