"""A real worker before 100,000 due rows of one task: the rows of others do not wait for their
end.
"""

from __future__ import annotations

import threading
from collections import Counter

import psycopg

from slotwise import JobContext, JobRegistry, task

FLOOD = 100_000
#: Two claims of the largest size may be under way, or wait for a thread, when a row comes.
AHEAD = 5_000

_FLOOD = f"""
INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, slot, picked, version, created_version)
SELECT 'flood', i::text, now() - interval '1 hour', now() - interval '1 hour', false, 1, 1
FROM generate_series(1, {FLOOD}) AS i"""


class Counts:
    """What has started; and, when the first row of a task did, how much had by then."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._at: dict[str, int] = {}
        self._changed = threading.Condition()

    def note(self, ctx: JobContext) -> None:
        with self._changed:
            self._counts[ctx.name] += 1
            self._at.setdefault(ctx.name, self._counts["flood"])
            self._changed.notify_all()

    def wait(self, name: str, count: int = 1) -> int:
        """Until so many have started; how many of the flood had when the first one did."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._counts[name] >= count, 60), (
                self._counts
            )
            return self._at[name]

    @property
    def flood(self) -> int:
        return self._counts["flood"]


def test_a_flood_keeps_nobody_waiting(pg_url: str) -> None:
    """Neither a row that comes later, scheduled here or by plain SQL, nor one of a task with a
    limit.
    """
    counts = Counts()
    names = ["a", *(f"idle-{number}" for number in range(20)), "flood", "z"]
    tasks = [task(name=name)(counts.note) for name in names]
    limits = [
        task(name="few", concurrency=1)(counts.note),
        task(name="slow", rate_limit="5/s")(counts.note),
    ]
    registry = JobRegistry(
        tasks=[*tasks, *limits], database_url=pg_url, process_hook=False
    )
    with psycopg.connect(pg_url) as sql:
        sql.execute(_FLOOD)
        sql.commit()
        try:
            registry.start()
            counts.wait("flood", 1_000)
            before = {}
            for name in ("z", "a", "few", "slow"):
                before[name] = counts.flood
                registry.client.schedule(name)
            sql.execute(
                _FLOOD.replace("'flood', i::text", "'idle-7', 'sql'").replace(
                    f"1, {FLOOD}", "1, 1"
                )
            )
            before["idle-7"] = counts.flood
            sql.commit()
            waited = {name: counts.wait(name) - seen for name, seen in before.items()}
            assert max(waited.values()) <= AHEAD, waited
            assert counts.flood < FLOOD
        finally:
            registry.stop()
