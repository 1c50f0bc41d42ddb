"""The budget of a recovery: at most so many slots that come late start in a second, in the whole cluster.

A row of ``scheduled_meta`` holds two instants: until when the starts so far fill the rate, and where the line of those
who wait ends. A start moves the former on by a pause. What may not start yet goes back, due at the end of the line
and marked as having a place there, so a row is put off once, however many wait. Its place says when to ask again, and
who asks first; whether it starts, the first instant alone says: on a machine that is late for every place, all start.

Races. One transaction at a time looks at the row, by a lock of its own that ends after the commit: an INSERT with ON
CONFLICT waits for whoever has updated the row, and a claim must not wait. Who finds the lock taken comes up again in
a moment: with its place, at a whole millisecond, or without one, at an instant that is none. Who was put off is asked
again whenever it comes up, though it is not late for its place.

Proof. Take the starts in the order of the lock, and a pause p of (1 s + 250 ms) / rate. With each start the row is full
until its instant and p, at least, and for p longer than before; and no start comes more than 250 ms before that ends.
So the n-th start after another comes no sooner than n * p - 250 ms after it, though claims may overtake each
other on their way to the lock. Less than a second lies between two of one second: n * p < 1.25 s, and with the first
they are no more than the rate. A start's instant is the claim's "now", and what the ledger says of when the slot
started; a claim that never began takes that back (``RowStatements.undo_entry``).
"""

from __future__ import annotations

from datetime import datetime, timedelta

import sqlalchemy as sa

from slotwise.model.records import TICK, Row
from slotwise.model.vocabulary import Origin
from slotwise.store.dialects.port import Dialect
from slotwise.store.schema.column_types import from_micros, to_micros

#: A first start that is later than this after it was due counts, as the runs of missed slots do.
LATE = timedelta(minutes=1)
_SECOND = timedelta(seconds=1)
_SLACK = timedelta(milliseconds=250)
_BUSY = timedelta(milliseconds=200)
_KEY = "recovery"


class RecoveryRate:
    """``rate``: starts per second; None: no limit."""

    def __init__(self, dialect: Dialect, rate: int | None) -> None:
        self._dialect = dialect
        self._meta = dialect.tables.meta
        self._pause = None if rate is None else TICK * -(-((_SECOND + _SLACK) // TICK) // rate)

    def is_late(self, row: Row, now: datetime) -> bool:
        """Whether a slot whose next one has not come counts: it starts late, or is the last one of a catch-up.

        So does one in a row of its own that was handed back before it began, and one that was put off: it is due at its
        place, and no longer late there.
        """
        if self._pause is None or row.attempt != 1:
            return False
        was_put_off = row.parked_due is not None
        return row.origin == Origin.CATCH_UP or (row.is_plan and (was_put_off or row.execution_time + LATE < now))

    def defer(self, connection: sa.Connection, row: Row, origin: str | None, now: datetime) -> datetime | None:
        """When the row's slot, which is to start for this ``origin``, asks again; None: it starts now."""
        if self._pause is None or row.attempt != 1 or (origin != Origin.CATCH_UP and not self.is_late(row, now)):
            return None
        has_place = row.parked_due is not None and row.execution_time == _whole(row.execution_time)
        if not self._dialect.alone(connection, _KEY):
            return _whole(now + _BUSY) + TICK * (not has_place)
        full, end = self._read(connection, now)
        if _has_room(full, now) and (has_place or end <= now):
            self._write(connection, _filled(full, now, self._pause), end)
            return None
        place = max(end, full - _SLACK)
        self._write(connection, full, place + self._pause)
        return _whole(place + timedelta(milliseconds=1) - TICK)

    def _read(self, connection: sa.Connection, now: datetime) -> tuple[datetime, datetime]:
        """Until when starts fill the rate, and where the line ends."""
        meta = self._meta
        found = connection.scalar(sa.select(meta.c.value).where(meta.c.key == _KEY))
        full, end = (from_micros(int(word)) for word in found.split()) if found else (now, now)
        # No start fills the rate for so long: the clock was put back, and the line stands in a time that is to come.
        return (full, end) if full < now + LATE else (now, now)

    def _write(self, connection: sa.Connection, full: datetime, end: datetime) -> None:
        meta = self._meta
        row = {"key": _KEY, "value": f"{to_micros(full)} {to_micros(end)}"}
        self._dialect.by_row.upsert(connection, meta, row, lambda new: {"value": new.value})


def _has_room(full: datetime, now: datetime) -> bool:
    """Whether one more may start though starts fill the rate until ``full``."""
    return now + _SLACK >= full


def _filled(full: datetime, now: datetime, pause: timedelta) -> datetime:
    """Until when starts fill the rate, after one more."""
    return max(full, now) + pause


def _whole(instant: datetime) -> datetime:
    """The millisecond that it lies in."""
    return instant.replace(microsecond=instant.microsecond // 1000 * 1000)
