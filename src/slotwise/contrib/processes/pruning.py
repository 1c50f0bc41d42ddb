"""Prune the ledger for a while: where no worker stays, short-lived processes do."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta

from slotwise.spi import Worker, describe_error, elapsed

logger = logging.getLogger(__name__)


def prune_for(worker: Worker, longest: timedelta, stopping: threading.Event) -> None:
    """Prune the ledger if it is time, for a while, or until ``stopping``. ``worker`` does not run
    its loops.

    What is left waits for the next process; so does what fails, which is logged.
    """
    until = elapsed() + longest.total_seconds()
    pruning = worker.pruning
    try:
        pruning.run_once()
        while pruning.is_walking and elapsed() < until and not stopping.is_set():
            pruning.run_once()
    except Exception as error:
        logger.warning(
            "the ledger was not pruned, a later run continues: %s",
            describe_error(error),
        )
