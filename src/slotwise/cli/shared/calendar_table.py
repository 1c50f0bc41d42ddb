"""What the commands about calendars share: the way to the table, and a calendar as JSON."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from slotwise.cli.shared.options import Given
from slotwise.schedules import Calendar
from slotwise.schedules.business.calendar import weekend_text
from slotwise.store.planning.calendar_changes import CalendarChanges


@contextmanager
def changes(given: Given) -> Iterator[CalendarChanges]:
    """The calendars in the database; whoever runs this command stands in the audit."""
    with given.store() as store:
        yield CalendarChanges(store, f"{_user()}@{socket.gethostname()}")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's number that no account has
        return str(os.getuid())


def facts(one: Calendar) -> dict[str, Any]:
    """A calendar as JSON."""
    return {
        "calendar": one.name, "revision": one.revision, "weekend": weekend_text(one.weekend),
        "days": [day.isoformat() for day in sorted(one.days)],
    }  # fmt: skip
