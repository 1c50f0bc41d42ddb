"""Business calendars as the database keeps them."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

import sqlalchemy as sa

from slotwise.errors import InvalidSchedule
from slotwise.schedules import Calendar, Schedule
from slotwise.schedules.business_days import calendar_of
from slotwise.store.schema.tables import Tables


def calendars_of(connection: sa.Connection, tables: Tables, schedule: Schedule) -> dict[str, Calendar]:
    """The calendars that the schedule goes by, as they are now; one that brings its own days may be missing.

    Raises InvalidSchedule if another is, with near matches and the cure.

    Race: they are locked until the transaction ends, so that a change of one that comes later finds the rows that
    this transaction plans by it.
    """
    wanted = schedule.calendars
    if not wanted:
        return {}
    table = tables.calendars
    statement = sa.select(table).where(table.c.name.in_(list(wanted))).order_by(table.c.name).with_for_update(read=True)
    found = {row["name"]: calendar_in(row) for row in connection.execute(statement).mappings()}
    for name, own in wanted.items():
        if name not in found and own is None:
            raise missing(name, connection.scalars(sa.select(table.c.name)))
    return found


def calendar_in(row: Any) -> Calendar:
    """The calendar of a row of the table."""
    return calendar_of(row["name"], row["revision"], row["weekend"], row["days"])


def missing(name: str, known: Iterable[str]) -> InvalidSchedule:
    """The error for a calendar that is not there."""
    near = get_close_matches(name, list(known), n=1)
    make = f"make it with: slotwise calendar import {name}, or: slotwise calendar add {name} DAY --create"
    hint = f"did you mean {near[0]}?" if near else make
    return InvalidSchedule(f"there is no calendar {name} in the database; {hint}")
