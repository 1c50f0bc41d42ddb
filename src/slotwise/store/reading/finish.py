"""Which slots will probably end later than their jobs' ``finish_by``, or already do."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from slotwise.jobs.finish_by import RUNS, FinishBy, share_at_risk
from slotwise.model.values import Value
from slotwise.schedules.description import zone_of
from slotwise.store.planning.revision import Declared
from slotwise.store.reading.queries import ReadTransaction, reading
from slotwise.store.schema.rows import utc
from slotwise.store.slots.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishForecast(Value):
    """A due slot that should have ended by ``finish_by``. ``started`` is None while it waits.

    ``share``: of ``runs`` earlier runs that lasted at least as long as this one already has, which
    share would miss it; 1 if it has passed. Without enough such runs, there is no forecast.
    """

    job: str
    id: str
    slot: datetime
    started: datetime | None
    finish_by: datetime
    share: float
    runs: int
    risk: float

    @property
    def will_miss(self) -> bool:
        """Whether the share has reached the risk from which the job wants a report."""
        return self.share >= self.risk


_DECLARED = """
SELECT task_name, plan, schedule FROM {tasks}
WHERE kind = 'plan' AND task_instance = 'recurring'
    AND CAST(plan AS {text}) LIKE '%finish_by%' AND task_name IN """
#: By indexes: those of tasks, of which there may be millions, are not read.
_DUE_NAMES = """(
SELECT task_name FROM {tasks} WHERE picked AND slot <= :now UNION ALL
SELECT task_name FROM {tasks}
WHERE NOT picked AND state IS NULL AND {has_slot} AND slot <= :now)"""
_DUE = """
SELECT coalesce(t.plan_instance, t.task_instance) AS id, t.slot, s.started
FROM {tasks} AS t LEFT JOIN {slots} AS s ON s.task_name = t.task_name
    AND s.task_instance = coalesce(t.plan_instance, t.task_instance)
    AND s.slot = t.slot AND s.finished IS NULL
WHERE t.task_name = :name AND t.slot <= :now AND (t.picked OR t.state IS NULL)
ORDER BY t.slot"""
_RUNS = """
SELECT started, finished FROM {slots}
WHERE task_name = :name AND task_instance = :id AND outcome = 'succeeded'
    AND started IS NOT NULL AND finished IS NOT NULL
ORDER BY slot DESC LIMIT :most"""


def finish_forecasts(
    store: Store, names: Collection[str] | None = None
) -> list[FinishForecast]:
    """Return the forecasts of all due slots whose jobs have a ``finish_by``, by job and slot."""
    if names is not None and not names:
        return []
    asked = _DUE_NAMES if names is None else ":names"
    with reading(store) as at:
        now = at.now()
        given = {"names": sorted(names or ()), "now": now}
        rows = at.read(f"{_DECLARED}{asked} ORDER BY task_name", given)
        return [one for row in rows for one in _of_job(at, row, now)]


def _of_job(
    at: ReadTransaction, row: sa.RowMapping, now: datetime
) -> Iterator[FinishForecast]:
    wanted = Declared.readable(row["plan"]).finish_by
    if wanted is None:
        return
    given = {"name": row["task_name"], "now": now, "most": RUNS}
    for due in at.read(_DUE, given):
        runs = at.read(_RUNS, {**given, "id": due["id"]})
        found = _forecast(wanted, row, due, runs, now)
        if found is not None:
            yield found


def _forecast(
    wanted: FinishBy,
    row: sa.RowMapping,
    due: sa.RowMapping,
    runs: Sequence[sa.RowMapping],
    now: datetime,
) -> FinishForecast | None:
    slot, started = utc(due["slot"]), utc(due["started"])
    deadline = wanted.deadline(slot, zone_of(row["schedule"]))
    elapsed = now - (started or now)
    durations = [utc(run["finished"]) - utc(run["started"]) for run in runs]
    found = share_at_risk(durations, elapsed, deadline - now)
    if found is None:
        return None
    share, count = found
    return FinishForecast(
        job=row["task_name"],
        id=due["id"],
        slot=slot,
        started=started,
        finish_by=deadline,
        share=share,
        runs=count,
        risk=wanted.risk,
    )
