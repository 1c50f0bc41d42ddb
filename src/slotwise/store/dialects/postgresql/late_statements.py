"""What is written of late slots, and of those that will not run, on PostgreSQL: of a whole batch in one statement each.

As in ``postgresql_holds``, rows are found by key in a join that is LATERAL, and written by place: no plan to choose.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from slotwise.model.records import Gap, Key, Row
from slotwise.store.dialects.dialect import Dialect
from slotwise.store.dialects.postgresql.arrays import fences, spread
from slotwise.store.schema.rows import CHANGED_COLUMNS, DECIDED_COLUMNS, expect, ledger_instance, utc

# What ledger and gaps know of each plan row that has missed slots: one descent into either for each.
NEWEST = """\
SELECT greatest(
    (SELECT s.slot FROM {slots} AS s
     WHERE s.task_name = i.task_name AND s.task_instance = i.task_instance AND s.origin IN ('schedule', 'catch_up')
       AND (s.finished IS NOT NULL OR s.outcome <> 'claimed' AND i.task_name = ANY (%(strict)s::text[]))
     ORDER BY s.slot DESC LIMIT 1),
    (SELECT g.last_slot FROM {gaps} AS g
     WHERE g.task_name = i.task_name AND g.task_instance = i.task_instance
     ORDER BY g.first_slot DESC LIMIT 1))
FROM unnest(%(names)s::text[], %(instances)s::text[]) WITH ORDINALITY AS i(task_name, task_instance, turn)
ORDER BY i.turn"""

# The slots that were decided, on the rows that this very transaction has claimed, and in the ledger as CLAIM enters
# them. A slot's start is when it was claimed.
BEGIN = """\
WITH held AS MATERIALIZED (
    SELECT h.ctid AS place, i.*
    FROM unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[]{arrays})
         AS i(task_name, task_instance, version{changed})
    CROSS JOIN LATERAL (
        SELECT t.ctid FROM {tasks} AS t
        WHERE t.task_name = i.task_name AND t.task_instance = i.task_instance
          AND CASE WHEN t.version = i.version THEN t.picked_by = %(holder)s ELSE false END
        OFFSET 0) AS h
), begun AS (
    UPDATE {tasks} AS t
    SET {sets}
    FROM held AS i
    WHERE t.ctid = ANY (ARRAY(SELECT place FROM held)) AND t.ctid = i.place
      AND t.version = i.version AND t.picked_by = %(holder)s
    RETURNING t.*
), ledger AS (
    INSERT INTO {slots} AS s
        (task_name, task_instance, slot, outcome, origin, attempts, collapsed, token, worker, started)
    SELECT task_name, task_instance, slot,
        CASE WHEN task_name = ANY (%(strict)s::text[]) THEN 'claimed' ELSE 'running' END,
        coalesce(origin, 'schedule'), attempt, collapsed, version, picked_by,
        CASE WHEN task_name = ANY (%(strict)s::text[]) THEN NULL ELSE %(claimed_at)s::timestamptz END
    FROM begun
    {again}
    RETURNING s.task_name, s.task_instance
)
SELECT b.count, l.task_name, l.task_instance
FROM (SELECT count(*) FROM begun) AS b LEFT JOIN ledger AS l ON true"""

# A ledger row for a single slot that will not run, a gap row for several. Those that hold open slots come back: they
# are ended one by one, for that waits for whoever has them locked. Not by an EXISTS: it might be made a join.
GAPS = """\
WITH found AS MATERIALIZED (
    SELECT i.*
    FROM unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[], %(holders)s::text[],
                %(firsts)s::timestamptz[], %(lasts)s::timestamptz[], %(counts)s::bigint[], %(reasons)s::text[])
         WITH ORDINALITY AS i(task_name, task_instance, version, holder, first_slot, last_slot, count, reason, turn)
), skipped AS (
    INSERT INTO {slots} (task_name, task_instance, slot, outcome, reason, finished)
    SELECT task_name, task_instance, first_slot, 'skipped', reason, %(at)s::timestamptz FROM found WHERE count = 1
    ON CONFLICT DO NOTHING
), entered AS (
    INSERT INTO {gaps} AS g (task_name, task_instance, first_slot, last_slot, count, reason, created)
    SELECT DISTINCT ON (task_name, task_instance, first_slot)
        task_name, task_instance, first_slot, last_slot, count, reason, %(at)s::timestamptz
    FROM found WHERE count > 1
    ORDER BY task_name, task_instance, first_slot, last_slot DESC
    ON CONFLICT (task_name, task_instance, first_slot) DO UPDATE
    SET last_slot = excluded.last_slot, count = excluded.count, reason = excluded.reason, created = excluded.created
    WHERE excluded.last_slot > g.last_slot
)
SELECT i.turn FROM found AS i WHERE (
    SELECT true FROM {slots} AS s
    WHERE s.task_name = i.task_name AND s.task_instance = i.task_instance
      AND s.slot >= i.first_slot AND s.slot <= i.last_slot
      AND CASE WHEN s.finished IS NULL THEN s.token <> i.version OR s.worker <> coalesce(i.holder, '') ELSE false END
    LIMIT 1)"""


class LateSlots(Dialect):
    """Whole batches of what the portable form says row by row."""

    def _run(self, connection: sa.Connection, template: str, parameters: dict[str, Any], **parts: str) -> Any:
        raise NotImplementedError

    def newest_decided(
        self, connection: sa.Connection, plans: Sequence[Row], *, strict: Collection[str]
    ) -> list[datetime | None]:
        parameters = {**fences(plans), "strict": list(strict)}
        return [utc(newest) for (newest,) in self._run(connection, NEWEST, parameters)]

    def begin(
        self, connection: sa.Connection, started: Sequence[Row], now: datetime, *, strict: Collection[str]
    ) -> set[Key]:
        columns = {name: [getattr(row, name) for row in started] for name in DECIDED_COLUMNS}
        parameters, parts = spread(columns, CHANGED_COLUMNS)
        parameters |= {**fences(started), "holder": started[0].picked_by, "strict": list(strict), "claimed_at": now}
        found = self._run(connection, BEGIN, parameters, **parts).all()
        expect(found[0][0], len(started), started[0])
        return {Key(name, instance) for _, name, instance in found if name is not None}

    def gaps(self, connection: sa.Connection, gaps: Iterable[tuple[Row, Gap]], now: datetime) -> None:
        if not (found := list(gaps)):
            return
        parameters = {
            "names": [row.task_name for row, _ in found],
            "instances": [ledger_instance(row) for row, _ in found],
            "versions": [row.version for row, _ in found],
            "holders": [row.picked_by for row, _ in found],
            "firsts": [gap.first for _, gap in found],
            "lasts": [gap.last for _, gap in found],
            "counts": [gap.count for _, gap in found],
            "reasons": [gap.reason for _, gap in found],
            "at": now,
        }
        for (turn,) in self._run(connection, GAPS, parameters).all():
            row, gap = found[turn - 1]
            self._close_open_slots(connection, row, gap, now)
