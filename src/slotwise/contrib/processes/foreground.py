"""A worker as the purpose of its process: signals drain it, a supervisor follows it, and the
process ends after it.
"""

from __future__ import annotations

import gc
import logging
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from slotwise.contrib.processes.signals import StopSignals
from slotwise.contrib.processes.supervisor import Lifeline

if TYPE_CHECKING:
    from slotwise.contrib.shards.fleet import Fleet
    from slotwise.spi import Worker

#: Operators filter by this name.
logger = logging.getLogger("slotwise.worker")

#: Allocations between two collections: more than two claimed batches need.
GENERATION: Final = 20_000


class Foreground:
    """Run one worker in this process, until a signal or the supervisor stops it.

    The first SIGTERM, SIGINT or SIGHUP drains, the second cancels running handlers, the third
    calls ``end_now``, which must end the process at once: other workers take over when the leases
    expire. Signals within a second count as one. ``lifeline`` is what a Supervisor has
    passed to this child. Use it in the main thread.
    """

    def __init__(
        self,
        worker: Worker | Fleet,
        *,
        end_now: Callable[[], object],
        lifeline: Lifeline | None = None,
    ) -> None:
        self._worker = worker
        self._end_now = end_now
        self._lifeline = lifeline

    def run(self) -> int:
        """Start the worker, wait for a stop, and drain; return how much was left behind.

        Race: a handler that did not stop was handed back; until this process ends, it may run here
        and elsewhere. If this returns a number, or raises while ``worker.unfinished`` is one, end
        the process at once. Raises what ``Worker.start`` raises, and what the lifespan raises.
        """
        worker = self._worker
        if self._lifeline is not None:
            self._lifeline.watch(
                on_drain=lambda: worker.request_stop("supervisor"),
                on_cancel=worker.cancel,
            )
        spare_the_collector()
        try:
            with StopSignals(self._react, final=True):
                worker.start()
                if self._lifeline is not None and not worker.wait_for_stop(0):
                    self._lifeline.say_up()
                worker.wait_for_stop()
                worker.stop(ending=True)
        finally:
            if not worker.unfinished:
                worker.database.close()
        return worker.unfinished

    def _react(self, number: int, count: int) -> None:
        word = signal.Signals(number).name
        if count > 2:
            logger.warning(
                "%s again: ending at once; other workers take over when the leases expire",
                word,
            )
            self._end_now()
        elif count == 1:
            logger.info(
                "%s: draining; send it again, after a second, to cancel running handlers",
                word,
            )
            self._worker.request_stop(word)
        else:
            logger.info("%s: cancelling running handlers", word)
            self._worker.cancel()


def spare_the_collector() -> None:
    """Keep the garbage collector from traversing all that exists at the start, and run it less
    often.

    An application that has disabled it, or has set a higher threshold, keeps its choice.
    """
    gc.collect()
    gc.freeze()
    young, *older = gc.get_threshold()
    if 0 < young < GENERATION:
        gc.set_threshold(GENERATION, *older)
