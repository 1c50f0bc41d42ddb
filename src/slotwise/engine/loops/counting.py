"""Counts what this worker settles and skips, and adds it to the hourly counts once a minute."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from itertools import islice

from sqlalchemy.exc import SQLAlchemyError

from slotwise.engine.loops.held_claims import Tally
from slotwise.engine.loops.service import AT_ONCE, Service, WorkerCommon
from slotwise.engine.loops.tuning import COUNT_INTERVAL
from slotwise.model.records import Gap, Key
from slotwise.model.vocabulary import Outcome, Reason
from slotwise.store.connect.database_errors import describe_error
from slotwise.store.slots.counts import SLOT, TASK, Counts, Ended, by_hour, hour_of
from slotwise.store.slots.tuning import BATCH

logger = logging.getLogger(__name__)

_OUTCOMES = frozenset(Outcome)
#: Reasons of slots that run again.
_GOES_ON = (Reason.RETRY, Reason.RERUN)


class Counting(Service):
    """What cannot be written is dropped, and found again when the hour is recounted."""

    name = "counter"

    def __init__(self, common: WorkerCommon, settled: Tally) -> None:
        """``settled``: what the settler has counted."""
        super().__init__(common)
        self._counts = Counts(common.store)
        self._warnings = common.store.warnings
        self._settled = settled
        self._lock = threading.Lock()
        self._ended = Counter[Ended]()

    def skipped(self, ranges: Sequence[tuple[Key, Gap]]) -> None:
        """Count slots that will not run."""
        for key, gap in ranges:
            name = key.task_name
            found = by_hour(name, gap.first, gap.last, gap.count, gap.reason)
            self._add(found)

    def _add(self, ended: Iterable[tuple[Ended, int]]) -> None:
        with self._lock:
            for one, count in ended:
                self._ended[one] += count

    def _collect(self) -> None:
        """Take what the settler has counted since. Of a task, each failed attempt counts."""
        taken, at = self._settled.take()
        for (name, slot, outcome, reason), count in taken.items():
            is_lost = outcome == Outcome.LOST and reason is None
            if outcome not in _OUTCOMES or reason in _GOES_ON or is_lost:
                continue
            kind = TASK if slot is None else SLOT
            one = Ended(name, hour_of(slot or at), kind, outcome, reason or "")
            self._add([(one, count)])

    def run_once(self) -> timedelta:
        self._collect()
        with self._lock:
            batch = dict(islice(self._ended.items(), BATCH))
            for one in batch:
                del self._ended[one]
        if batch:
            try:
                self._counts.add(batch)
            except SQLAlchemyError as error:
                why = describe_error(error)
                if lost := self._warnings.count("hourly counts", why, len(batch)):
                    logger.warning("hourly counts lack entries (%d): %s", lost, why)
        return AT_ONCE if len(batch) == BATCH else COUNT_INTERVAL
