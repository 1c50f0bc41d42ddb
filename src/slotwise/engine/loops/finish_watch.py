"""Warn once about each slot held here that will probably miss its job's ``finish_by``."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from slotwise.engine.loops.service import Service, WorkerCommon
from slotwise.engine.loops.tuning import FINISH_CHECK
from slotwise.store.reading.finish import FinishForecast, finish_forecasts

logger = logging.getLogger(__name__)


class FinishWatch(Service):
    """Forecast the ends of what this worker runs. It changes nothing."""

    name = "finish_watch"

    def __init__(self, common: WorkerCommon) -> None:
        super().__init__(common)
        definitions = common.store.definitions
        self._store = common.store
        self._claims = common.active_claims
        self.names = {name for name, one in definitions.items() if one.finish_by}
        self._warned = set[tuple[str, str, datetime]]()

    def run_once(self) -> timedelta:
        held = {holding.claim.row.plan_key for holding in self._claims.slots()}
        running = {key.task_name for key in held} & self.names
        found = finish_forecasts(self._store, running)
        self._warn(
            [one for one in found if (one.job, one.id) in held and one.will_miss]
        )
        return FINISH_CHECK

    def _warn(self, found: list[FinishForecast]) -> None:
        late = {(one.job, one.id, one.slot): one for one in found}
        for key in late.keys() - self._warned:
            one = late[key]
            logger.warning(
                "%s: the slot %s will probably not have ended by %s: %d%% of %d earlier runs that "
                "lasted as long took longer",
                one.job,
                one.slot.isoformat(),
                one.finish_by.isoformat(),
                round(100 * one.share),
                one.runs,
            )
        self._warned = set(late) | (self._warned & late.keys())
