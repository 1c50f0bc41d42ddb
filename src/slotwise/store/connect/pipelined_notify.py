"""A word that goes along with a statement: one trip, where the statement and a notification after it take two.

The server commits the statement before it so much as reads the notification: whoever hears it sees the row, as if it
had been sent after the reply. Were both in one transaction, a lock of the whole server would be held during the flush.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from sqlalchemy import Engine, event

from slotwise.store.connect.dsn import psycopg

logger = logging.getLogger(__name__)

#: The option of a connection in autocommit: channel and words.
ALONG = "slotwise_along"
NOTIFY = "SELECT pg_notify(%s, word) FROM unnest(%s::text[]) AS word"


def can_go_along() -> bool:
    """Whether this libpq can send a statement before it has the reply to another."""
    return bool(psycopg().Pipeline.is_supported())


def let_words_go_along(engine: Engine) -> None:
    """Have statements of this engine's connections followed by what ALONG says."""

    def execute(cursor: Any, statement: str, parameters: Any, context: Any) -> bool:
        said = context.execution_options.get(ALONG)
        if said is None:
            return False
        driver, committed = cursor.connection, None
        try:
            with driver.pipeline():
                driver.execute("BEGIN")  # else all of a pipeline would be one transaction
                cursor.execute(statement, parameters)
                committed = driver.execute("COMMIT")
                driver.execute(NOTIFY, said)
        except psycopg().Error as error:
            if committed is None or committed.statusmessage is None:
                with suppress(psycopg().Error):  # the connection is lost: what was raised first says why
                    driver.rollback()
                raise
            logger.debug("nobody was woken, polls will find what is due: %s", error)
        return True

    event.listen(engine, "do_execute", execute)
