"""Counts what this worker settles and skips, and adds it to the hourly counts once a minute."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from itertools import islice

from sqlalchemy.exc import SQLAlchemyError

from slotwise.engine.loops.service import AT_ONCE, Service, WorkerCommon
from slotwise.engine.loops.tuning import COUNT_INTERVAL
from slotwise.model.events import (
    BatchSkipped,
    Event,
    Finished,
    SlotsSkipped,
    SlotsSuperseded,
)
from slotwise.model.vocabulary import Outcome, Reason
from slotwise.store.connect.database_errors import describe_error
from slotwise.store.slots.counts import SLOT, TASK, Counts, Ended, by_hour, hour_of
from slotwise.store.slots.tuning import BATCH

logger = logging.getLogger(__name__)

#: Looked up once, as it is asked for each execution.
_SUCCEEDED = Outcome.SUCCEEDED.value
_OUTCOMES = frozenset(Outcome)
#: Reasons of slots that run again.
_GOES_ON = (Reason.RETRY, Reason.RERUN)


class Counting(Service):
    """A loop that is also a listener to skipped slots.

    What cannot be written is dropped, and found again when the hour is recounted.
    """

    name = "counter"

    def __init__(self, common: WorkerCommon) -> None:
        super().__init__(common)
        self._counts = Counts(common.store)
        self._warnings = common.store.warnings
        self._lock = threading.Lock()
        self._ended = Counter[Ended]()

    def settled(
        self,
        usual: Sequence[Finished],
        others: Sequence[tuple[Finished, str, str | None]],
    ) -> None:
        """Count what has ended. Of a task, each failed attempt is counted."""
        rows = (one.claim.row for one in usual)
        names = Counter(
            (row.task_name, row.slot if row.has_slot else None) for row in rows
        )
        found = Counter[Ended]()
        for (name, slot), count in names.items():
            at = usual[0].claim.claimed_at if slot is None else slot
            kind = TASK if slot is None else SLOT
            found[Ended(name, hour_of(at), kind, _SUCCEEDED, "")] += count
        for one, outcome, reason in others:
            row = one.claim.row
            is_lost = outcome == Outcome.LOST and reason is None
            if outcome not in _OUTCOMES or reason in _GOES_ON or is_lost:
                continue
            at = row.slot if row.has_slot and row.slot else one.claim.claimed_at
            kind = SLOT if row.has_slot else TASK
            found[Ended(row.task_name, hour_of(at), kind, outcome, reason or "")] += 1
        self._add(found.items())

    def wants(self, kind: type[Event]) -> bool:
        """Whether this listener counts events of this kind."""
        return kind in (SlotsSkipped, SlotsSuperseded, BatchSkipped)

    def __call__(self, event: Event) -> None:
        if isinstance(event, SlotsSkipped):
            gaps = by_hour(event.job, event.first, event.last, event.count, event.reason)
            self._add(gaps)
        elif isinstance(event, BatchSkipped):
            for key, gap in event.ranges:
                name = key.task_name
                self._add(by_hour(name, gap.first, gap.last, gap.count, gap.reason))

    def _add(self, ended: Iterable[tuple[Ended, int]]) -> None:
        with self._lock:
            for one, count in ended:
                self._ended[one] += count

    def run_once(self) -> timedelta:
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
