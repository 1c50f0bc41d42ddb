"""A probe for the pod of a worker: ``python -m slotwise.contrib.kubernetes.alive``.

It asks the database whether this pod's worker sends heartbeats. It exits with 1 if the database answers and the worker
is silent, and with 0 if the database does not answer: a restart would not help then, and handlers may be running. With
``--signed-in`` it exits with 0 only if the database answers and the worker is live.

A worker's name is the name of the pod, or ``SLOTWISE_WORKER_NAME``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from slotwise.errors import ConfigurationError, DatabaseProblem
from slotwise.settings.settings import Settings
from slotwise.store.connect.database import Database
from slotwise.store.connect.database_errors import describe, is_transient
from slotwise.store.reading.reader import Reader
from slotwise.store.slots.store import Store

_SIGNED_IN: Final = "--signed-in"


def main(arguments: Sequence[str]) -> int:
    """Return the exit status, after a line on stderr if it is not 0."""
    if unknown := [one for one in arguments if one != _SIGNED_IN]:
        return _failed(f"{unknown[0]!r:.40} is unknown; write nothing, or {_SIGNED_IN}", 2)
    is_strict = _SIGNED_IN in arguments
    try:
        settings = Settings.load()
        database = Database(settings)
        try:
            workers = Reader(Store(database, {})).workers()
        finally:
            database.close()
    except ConfigurationError as error:
        return _failed(str(error), 1)
    except Exception as error:
        if not isinstance(error, DatabaseProblem) and not is_transient(error):
            raise
        return _failed(describe(error), 1) if is_strict else 0
    mine = [worker for worker in workers if worker.host == settings.worker]
    if not any(worker.live for worker in mine):
        seen = f"was last seen at {mine[0].last_seen.isoformat()}" if mine else "has not signed in"
        return _failed(f"worker {settings.worker} {seen}", 1)
    return 0


def _failed(why: str, status: int) -> int:
    print(f"error: {why}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
