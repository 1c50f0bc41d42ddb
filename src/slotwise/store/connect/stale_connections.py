"""Connections that rested in a pool while their server may have gone."""

from __future__ import annotations

import select
import time
from datetime import timedelta
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.exc import InvalidatePoolError

#: One that rested for longer is asked whether it still lives; a busy one would pay a trip each time.
REST_BEFORE_PING = timedelta(seconds=1)


def look_at_the_rested(engine: Engine) -> None:
    """A restart of the server while nobody used the connection is not the next user's error.

    What it said when it went lies unread in the socket; a link that was cut says nothing, and costs a trip to find out.
    """

    def checkin(_connection: object, record: Any) -> None:
        record.info["rests_since"] = time.monotonic()

    def checkout(connection: Any, record: Any, _proxy: object) -> None:
        since = record.info.pop("rests_since", None)
        if since is None:
            return
        if _was_spoken_to(connection):
            raise InvalidatePoolError
        if time.monotonic() - since < REST_BEFORE_PING.total_seconds():
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise InvalidatePoolError from error

    event.listen(engine, "checkin", checkin)
    event.listen(engine, "checkout", checkout)


def _was_spoken_to(connection: Any) -> bool:
    """Whether the server has sent something that nobody asked for: it is shutting down, as a rule."""
    try:
        return bool(select.select([connection.fileno()], [], [], 0)[0])
    except (OSError, ValueError):  # closed already, or too large a number for select: asked as before
        return False
