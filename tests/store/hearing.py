"""What a store sends to its database, over whichever of its engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from slotwise.spi import Database

Sent = tuple[str, Any]


@contextmanager
def hearing(database: Database) -> Iterator[list[Sent]]:
    """The statements that are sent meanwhile, with their parameters, in order."""
    heard: list[Sent] = []

    def listen(
        _connection: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any
    ) -> None:
        heard.append((statement, parameters))

    with listening(database, listen):
        yield heard


@contextmanager
def listening(database: Database, listen: Callable[..., None]) -> Iterator[None]:
    """Call ``listen`` before each statement that is sent on any engine of a database."""
    engines = {database.main, database.claims, database.heart}
    for engine in engines:
        sa.event.listen(engine, "before_cursor_execute", listen)
    try:
        yield
    finally:
        for engine in engines:
            sa.event.remove(engine, "before_cursor_execute", listen)
