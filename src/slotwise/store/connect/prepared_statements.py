"""Prepared statements on connections that are busy, and only there; their plans are thought over each second.

The hot statements are long: to read and plan one costs the server as much as two hundred rows. But a plan that is
kept is as old as the table was when it was made: on an empty table any index will do, and a million rows later it
is the wrong one. So nothing is prepared at a leisurely pace, and no plan is kept for longer than ``PLAN_LIFE``.

Where no table is read from end to end, as on the connections of claims, the plans of an empty table and of a full one
are the same. There all is prepared at once, so that the first task after an hour starts as soon as one of thousands.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.exc import InvalidatePoolError

#: For how long a plan is kept, in seconds; and one of statements that leave the server no choice.
PLAN_LIFE, LONG_LIFE = 1.0, 60.0
#: So many transactions within that time make a connection busy.
BUSY = 10
#: The driver prepares, then, what it runs for the so manyth time.
THRESHOLD = 5


def keep_plans(engine: Engine, may_prepare: Callable[[], bool], *, at_once: bool = False) -> None:
    """Let busy connections of this engine prepare their statements, as long as ``may_prepare``; or all, ``at_once``."""

    def checkout(connection: Any, record: Any, _proxy: object) -> None:
        now = time.monotonic()
        since, uses = record.info.setdefault("plans", (now, 0))
        life, busy, threshold = (LONG_LIFE, 0, 0) if at_once else (PLAN_LIFE, BUSY, THRESHOLD)
        may_go_on = uses != busy if connection.prepare_threshold is None else may_prepare()
        if now - since < life and may_go_on:
            record.info["plans"] = since, uses + 1
            return
        record.info["plans"] = now, 1
        is_busy = uses >= busy and may_prepare()
        connection.prepare_threshold = threshold if is_busy else None
        if is_busy:
            _discard(engine, connection)

    event.listen(engine, "checkout", checkout)


def _discard(engine: Engine, connection: Any) -> None:
    try:
        connection.execute("DISCARD PLANS", prepare=False)
        connection.commit()
    except engine.dialect.loaded_dbapi.Error as error:
        raise InvalidatePoolError from error
