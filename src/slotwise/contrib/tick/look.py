"""Whether a tick has something to stay for, and when the next one is to come. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from slotwise.spi import Row

#: The pause before the next look while something is due. Reasoned: a claim takes milliseconds.
SHORTLY: Final = timedelta(milliseconds=50)


@dataclass(frozen=True, slots=True)
class Look:
    """What the database says at one instant, about the tasks of this process."""

    now: datetime
    #: Until the next row is due; None: nothing waits.
    due: timedelta | None
    #: The rows that are held, by this process or others.
    held: Sequence[Row] = ()
    #: The ends of pauses that end by themselves.
    pauses: Sequence[datetime] = ()


@dataclass(frozen=True, slots=True)
class Stay:
    """Look again after this pause."""

    pause: timedelta


@dataclass(frozen=True, slots=True)
class Leave:
    """Nothing is left to do before ``until``; None: nothing is known to come."""

    until: datetime | None


Step: TypeAlias = Stay | Leave


def next_step(look: Look, *, me: str, early: timedelta, patience: timedelta) -> Step:
    """Return what to do after a look. Pure.

    ``me`` is this process as a holder. It waits for what is due within ``early``. A row whose
    lease has expired, or will within ``early``, keeps it until the reaper has judged; it looks
    again after ``patience``.
    """
    others = [row for row in look.held if not row.is_foreign]
    if _is_due(look, early) or any(row.picked_by == me for row in others):
        return Stay(SHORTLY)
    ends = [_end_of_lease(row, look.now) for row in others]
    if any(end <= look.now + early for end in ends):
        return Stay(patience)
    known = [*ends, *look.pauses]
    if look.due is not None:
        known.append(look.now + look.due)
    return Leave(min(known, default=None))


def _is_due(look: Look, early: timedelta) -> bool:
    if look.due is not None and look.due <= early:
        return True
    return any(end <= look.now for end in look.pauses)


def _end_of_lease(row: Row, now: datetime) -> datetime:
    """Return when the claim of another process expires unless it is renewed.

    Race: the database's clock may have been set back since the last heartbeat. A claim is silent
    for a lease from now on at most.
    """
    lease = row.lease or timedelta(0)
    return min(row.last_heartbeat or now, now) + lease
