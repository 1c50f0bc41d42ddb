"""PostgreSQL (14 or newer): the hot statements, in batches, as text that can be read and EXPLAINed as it is.

Rules behind them, each from an experiment:
- "now" is statement_timestamp(): clock_timestamp() is volatile and keeps the index from being used.
- The claim has no join to choose: rows are found by ctid, which cannot flip to a hash join with a sequential scan.
- Claim, heartbeat and reaper never wait (SKIP LOCKED); settlements lock in key order, so they cannot deadlock.
- Rows that were lost before are few, and have an index of their own; both finds are cut to the limit at the end, and
  not by a LIMIT that is computed, at which the planner can only guess.
- The claim's UPDATE repeats the conditions of its SELECT: a ctid may have been reused in between. It does so within
  a CASE, which no index fits: else, on a table never analysed, the rows are looked for once more, and all that are due.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import insert

from slotwise.clock import Clock
from slotwise.execution import Claim, Fence, Key, LedgerEntry, LedgerKey, Row
from slotwise.store.dialect import Dialect
from slotwise.store.rows import (
    ADDED_COLUMNS,
    CHANGED_COLUMNS,
    HOLD_COLUMNS,
    RECORDED_COLUMNS,
    ROW_COLUMNS,
    TASK_COLUMNS,
    Change,
    Held,
    hold_of,
    ledger_instance,
    row_of,
    task_of,
    utc,
)
from slotwise.store.tables import Tables

CLAIM = """\
WITH due AS (
    UPDATE {tasks} AS t
    SET picked = true, picked_by = %(holder)s, last_heartbeat = {now}, lease = %(lease)s,
        version = greatest(t.version + 1, (extract(epoch FROM {now}) * 1000000)::bigint), attempt = t.attempt + 1,
        watermark = CASE WHEN t.schedule IS NULL THEN t.watermark ELSE greatest(t.watermark, t.slot) END
    WHERE t.ctid = ANY ((ARRAY(
        SELECT d.ctid FROM {tasks} AS d
        WHERE NOT d.picked AND d.state IS NULL AND d.lost_count > 0 AND d.execution_time <= {now}
          AND d.task_name = ANY (%(names)s::text[]){who}
        ORDER BY d.execution_time
        LIMIT %(lost)s
        FOR UPDATE SKIP LOCKED) || ARRAY(
        SELECT d.ctid FROM {tasks} AS d
        WHERE NOT d.picked AND d.state IS NULL AND d.lost_count = 0 AND d.execution_time <= {now}
          AND d.task_name = ANY (%(names)s::text[]){who}{kind}
        ORDER BY d.execution_time
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED))[1:%(limit)s::integer])
      AND CASE WHEN t.picked OR t.state IS NOT NULL THEN false
               ELSE t.execution_time <= {now} AND t.task_name = ANY (%(names)s::text[]) END
    RETURNING {columns}
), ledger AS (
    INSERT INTO {slots} AS s
        (task_name, task_instance, slot, outcome, origin, attempts, collapsed, token, worker, started)
    SELECT DISTINCT ON (task_name, coalesce(plan_instance, task_instance), slot)
        task_name, coalesce(plan_instance, task_instance), slot,
        CASE WHEN task_name = ANY (%(strict)s::text[]) THEN 'claimed' ELSE 'running' END,
        coalesce(origin, 'schedule'), attempt, collapsed, version, picked_by,
        CASE WHEN task_name = ANY (%(strict)s::text[]) THEN NULL ELSE {now} END
    FROM due
    WHERE slot IS NOT NULL
      AND (plan_instance IS NOT NULL
           OR schedule IS NOT NULL AND (attempt > 1 OR next_slot IS NULL OR next_slot > {now}))
    ON CONFLICT (task_name, task_instance, slot) DO UPDATE
    SET outcome = excluded.outcome, reason = NULL, attempts = s.attempts + 1, collapsed = excluded.collapsed,
        token = excluded.token, worker = excluded.worker, started = excluded.started
    WHERE s.finished IS NULL AND s.outcome <> 'running'
      AND (s.attempts = 0 OR NOT excluded.task_name = ANY (%(strict)s::text[]))
    RETURNING s.task_name, s.task_instance, s.slot, s.token
)
SELECT {now}, schedule IS NULL AND plan_instance IS NULL OR EXISTS (
        SELECT FROM ledger AS l
        WHERE l.task_name = due.task_name AND l.task_instance = coalesce(due.plan_instance, due.task_instance)
          AND l.slot = due.slot AND l.token = due.version),
    {plain_columns}
FROM due
ORDER BY execution_time"""

#: For every claim but that of a row which an operator runs himself. Asked once per statement, not per row.
ALL_PAUSED = "\n          AND NOT EXISTS (SELECT FROM {meta} WHERE key = 'paused')"
HAS_SLOT = "\n          AND (d.schedule IS NOT NULL OR d.plan_instance IS NOT NULL)"

DUE_NAMES = """\
(SELECT d.task_name FROM {tasks} AS d
 WHERE NOT d.picked AND d.state IS NULL AND (d.schedule IS NOT NULL OR d.plan_instance IS NOT NULL)
   AND d.execution_time <= {now}
 ORDER BY d.execution_time LIMIT %(limit)s)
UNION ALL
(SELECT d.task_name FROM {tasks} AS d
 WHERE NOT d.picked AND d.state IS NULL AND d.lost_count > 0 AND d.execution_time <= {now}
 ORDER BY d.execution_time LIMIT %(limit)s)"""

# One descent into the index per name, and one per priority that it has: rows of others, or in the future, cost nothing.
HEADS = """\
    WITH RECURSIVE heads AS (
        SELECT n.task_name, n.turn, (
            SELECT -coalesce(q.priority, 50) FROM {tasks} AS q
            WHERE q.task_name = n.task_name AND NOT q.picked AND q.state IS NULL
              AND q.schedule IS NULL AND q.plan_instance IS NULL
            ORDER BY -coalesce(q.priority, 50) LIMIT 1) AS rank
        FROM unnest(%(tasks)s::text[]) WITH ORDINALITY AS n(task_name, turn)
        WHERE NOT EXISTS (SELECT FROM {meta} WHERE key = 'paused')
        UNION ALL
        SELECT h.task_name, h.turn, (
            SELECT -coalesce(q.priority, 50) FROM {tasks} AS q
            WHERE q.task_name = h.task_name AND NOT q.picked AND q.state IS NULL
              AND q.schedule IS NULL AND q.plan_instance IS NULL AND -coalesce(q.priority, 50) > h.rank
            ORDER BY -coalesce(q.priority, 50) LIMIT 1)
        FROM heads AS h WHERE h.rank IS NOT NULL)"""

CLAIM_TASKS = """\
UPDATE {tasks} AS t
SET picked = true, picked_by = %(holder)s, last_heartbeat = {now}, lease = %(lease)s,
    version = greatest(t.version + 1, (extract(epoch FROM {now}) * 1000000)::bigint), attempt = t.attempt + 1
WHERE t.ctid = ANY (ARRAY(
    {heads}
    SELECT d.ctid FROM (SELECT task_name, rank FROM heads WHERE rank IS NOT NULL ORDER BY rank, turn) AS p
    CROSS JOIN LATERAL (
        SELECT w.ctid FROM {tasks} AS w
        WHERE w.task_name = p.task_name AND -coalesce(w.priority, 50) = p.rank AND NOT w.picked AND w.state IS NULL
          AND w.schedule IS NULL AND w.plan_instance IS NULL AND w.lost_count = 0 AND w.execution_time <= {now}
        ORDER BY w.execution_time
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED) AS d
    LIMIT %(limit)s))
  AND CASE WHEN t.picked OR t.state IS NOT NULL OR t.schedule IS NOT NULL OR t.plan_instance IS NOT NULL THEN false
           ELSE t.execution_time <= {now} AND t.task_name = ANY (%(tasks)s::text[]) END
RETURNING {task_columns}"""

NEXT_DUE = """\
{heads}
SELECT least(greatest(min(due), {now} - interval '1 day'), timestamptz '9000-01-01Z') - {now} FROM (
    (SELECT d.execution_time FROM {tasks} AS d
     WHERE NOT d.picked AND d.state IS NULL AND d.lost_count > 0
       AND d.task_name = ANY (%(names)s::text[]) AND NOT EXISTS (SELECT FROM {meta} WHERE key = 'paused')
     ORDER BY d.execution_time LIMIT %(lost)s)
    UNION ALL
    (SELECT d.execution_time FROM {tasks} AS d
     WHERE NOT d.picked AND d.state IS NULL AND (d.schedule IS NOT NULL OR d.plan_instance IS NOT NULL)
       AND d.lost_count = 0 AND d.task_name = ANY (%(names)s::text[])
       AND NOT EXISTS (SELECT FROM {meta} WHERE key = 'paused')
     ORDER BY d.execution_time LIMIT 1)
    UNION ALL
    (SELECT d.execution_time FROM heads AS p CROSS JOIN LATERAL (
        SELECT w.execution_time FROM {tasks} AS w
        WHERE w.task_name = p.task_name AND -coalesce(w.priority, 50) = p.rank AND NOT w.picked AND w.state IS NULL
          AND w.schedule IS NULL AND w.plan_instance IS NULL AND w.lost_count = 0
        ORDER BY w.execution_time LIMIT 1) AS d)) AS waiting(due)
HAVING min(due) IS NOT NULL"""

# The key alone finds the row: what else is asked stands in a CASE, which no index fits. Else the planner takes the
# index of held rows, where it looks through all of this worker's for each of them.
FINISH = """\
WITH gone AS (
    DELETE FROM {tasks} AS t
    WHERE t.ctid = ANY (ARRAY(
        SELECT q.ctid
        FROM unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[])
             AS i(task_name, task_instance, version)
        CROSS JOIN LATERAL (
            SELECT h.ctid FROM {tasks} AS h
            WHERE h.task_name = i.task_name AND h.task_instance = i.task_instance
              AND CASE WHEN h.picked AND h.version = i.version AND h.picked_by = %(holder)s
                       THEN h.state IS NULL AND h.wanted_due IS NULL AND h.cancel_requested IS NULL
                       ELSE false END
            FOR UPDATE) AS q))
      AND CASE WHEN t.picked THEN t.picked_by = %(holder)s ELSE false END
    RETURNING 1)
SELECT pg_current_xact_id()::text, count(*) FROM gone"""

HOLD = """\
SELECT {now}, pg_current_xact_id()::text, q.ctid::text, {q_columns}
FROM unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[], %(holders)s::text[])
     AS i(task_name, task_instance, version, holder)
CROSS JOIN LATERAL (
    SELECT h.ctid, h.* FROM {tasks} AS h
    WHERE h.task_name = i.task_name AND h.task_instance = i.task_instance
      AND CASE WHEN h.picked AND h.version = i.version THEN h.picked_by = i.holder ELSE false END
    FOR UPDATE{skip}) AS q"""

ENTRIES = """\
SELECT l.ctid::text, l.task_name, l.task_instance, l.slot, l.outcome, l.token, l.finished IS NOT NULL, l.aborted,
    l.started
FROM unnest(%(names)s::text[], %(instances)s::text[], %(slots)s::timestamptz[]) AS i(task_name, task_instance, slot)
CROSS JOIN LATERAL (
    SELECT e.ctid, e.* FROM {slots} AS e
    WHERE e.task_name = i.task_name AND e.task_instance = i.task_instance AND e.slot = i.slot
    {lock}) AS l"""

RELEASE = """\
UPDATE {tasks} AS t
SET picked = false, picked_by = NULL, last_heartbeat = NULL, lease = NULL, cancel_requested = NULL,
    wanted_due = NULL, version = t.version + 1, {sets}
FROM unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[], %(holders)s::text[]{arrays})
     AS i(task_name, task_instance, version, holder{changed})
WHERE t.ctid = ANY (%(places)s::text[]::tid[])
  AND t.task_name = i.task_name AND t.task_instance = i.task_instance
  AND t.version = i.version AND t.picked_by = i.holder"""

REMOVE = """\
DELETE FROM {tasks} AS t
USING unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[], %(holders)s::text[])
     AS i(task_name, task_instance, version, holder)
WHERE t.ctid = ANY (%(places)s::text[]::tid[])
  AND t.task_name = i.task_name AND t.task_instance = i.task_instance
  AND t.version = i.version AND t.picked_by = i.holder"""

RECORD = """\
UPDATE {slots} AS s
SET {sets}
FROM unnest(%(names)s::text[], %(instances)s::text[], %(slots)s::timestamptz[], %(tokens)s::bigint[]{arrays})
     AS i(task_name, task_instance, slot, token{changed})
WHERE s.ctid = ANY (%(places)s::text[]::tid[])
  AND s.task_name = i.task_name AND s.task_instance = i.task_instance AND s.slot = i.slot
  AND s.token = i.token AND s.finished IS NULL"""

FORGET = """\
DELETE FROM {slots} AS s
USING unnest(%(names)s::text[], %(instances)s::text[], %(slots)s::timestamptz[], %(tokens)s::bigint[])
     AS i(task_name, task_instance, slot, token)
WHERE s.ctid = ANY (%(places)s::text[]::tid[])
  AND s.task_name = i.task_name AND s.task_instance = i.task_instance AND s.slot = i.slot
  AND s.token = i.token AND s.finished IS NULL"""

BEAT = """\
UPDATE {tasks} AS t
SET last_heartbeat = {now}
WHERE t.ctid = ANY (ARRAY(
        SELECT q.ctid
        FROM unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[])
             AS i(task_name, task_instance, version)
        CROSS JOIN LATERAL (
            SELECT h.ctid FROM {tasks} AS h
            WHERE h.task_name = i.task_name AND h.task_instance = i.task_instance
              AND CASE WHEN h.picked AND h.version = i.version THEN h.picked_by = %(holder)s ELSE false END
            FOR NO KEY UPDATE SKIP LOCKED) AS q))
  AND t.picked AND t.picked_by = %(holder)s
RETURNING t.task_name, t.task_instance, t.version"""

STILL_HELD = """\
SELECT q.task_name, q.task_instance, q.version
FROM unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[]) AS i(task_name, task_instance, version)
CROSS JOIN LATERAL (
    SELECT h.task_name, h.task_instance, h.version FROM {tasks} AS h
    WHERE h.task_name = i.task_name AND h.task_instance = i.task_instance
      AND CASE WHEN h.picked AND h.version = i.version THEN h.picked_by = %(holder)s ELSE false END
    OFFSET 0) AS q"""

SILENT = """\
SELECT {now}, {hold_columns} FROM {tasks} AS t WHERE t.picked AND t.task_name = ANY (%(names)s::text[])"""


class PostgreSQL(Dialect):
    """The reference: whole batches, one statement each."""

    name = "postgresql"
    insert = staticmethod(insert)

    def __init__(self, tables: Tables, clock: Clock) -> None:
        super().__init__(tables, clock)
        prepare = postgresql.dialect().identifier_preparer  # type: ignore[no-untyped-call]
        self._names = {
            "tasks": prepare.format_table(tables.tasks),
            "slots": prepare.format_table(tables.slots),
            "meta": prepare.format_table(tables.meta),
            "columns": ", ".join(f"t.{name}" for name in ROW_COLUMNS),
            "hold_columns": ", ".join(f"t.{name}" for name in HOLD_COLUMNS),
            "task_columns": ", ".join(TASK_COLUMNS),
            "plain_columns": ", ".join(ROW_COLUMNS),
            # a settlement does not need the payload, which may be large
            "q_columns": ", ".join("NULL::bytea" if name == "task_data" else f"q.{name}" for name in ROW_COLUMNS),
        }

    def sql(self, template: str, **parts: str) -> str:
        """The statement as it is sent, with names quoted and "now" put in."""
        now = "statement_timestamp()" if self.clock.override() is None else "CAST(%(now)s AS timestamptz)"
        return template.format(now=now, **self._names, **parts)

    def _run(self, connection: sa.Connection, template: str, parameters: dict[str, Any], **parts: str) -> Any:
        return connection.exec_driver_sql(self.sql(template, **parts), {**parameters, "now": self.clock.override()})

    def now(self, connection: sa.Connection) -> datetime:
        override = self.clock.override()
        return override or utc(connection.exec_driver_sql("SELECT statement_timestamp()").scalar_one())

    def committed(self, connection: sa.Connection, transaction_id: str) -> bool | None:
        status = connection.exec_driver_sql("SELECT pg_xact_status(%(id)s::xid8)", {"id": transaction_id}).scalar_one()
        return {"committed": True, "aborted": False}.get(status)

    def claim(
        self,
        connection: sa.Connection,
        *,
        holder: str,
        names: Sequence[str],
        strict: Sequence[str],
        limit: int,
        lease: timedelta,
        lost: int = 1,
        instance: str | None = None,
    ) -> list[tuple[Row, datetime, bool]]:
        parameters = {
            "holder": holder, "names": list(names), "strict": list(strict), "limit": limit, "lost": min(lost, limit),
            "lease": lease, "instance": instance,
        }  # fmt: skip
        if instance is None:
            parts = {"who": ALL_PAUSED.format(**self._names), "kind": HAS_SLOT}
        else:
            parts = {"who": " AND d.task_instance = %(instance)s", "kind": ""}
        found = self._run(connection, CLAIM, parameters, **parts)
        return [(row_of(values), utc(now), entered) for now, entered, *values in found]

    def due_names(self, connection: sa.Connection, limit: int) -> list[str]:
        return [name for (name,) in self._run(connection, DUE_NAMES, {"limit": limit}).cursor.fetchall()]

    def claim_tasks(
        self, connection: sa.Connection, *, holder: str, names: Sequence[str], limit: int, lease: timedelta
    ) -> list[Row]:
        parameters = {"holder": holder, "tasks": list(names), "limit": limit, "lease": lease}
        found = self._run(connection, CLAIM_TASKS, parameters, heads=self.sql(HEADS))
        return [task_of(values, holder) for values in sorted(found.cursor.fetchall(), key=_turn)]

    def next_due(
        self, connection: sa.Connection, names: Sequence[str], tasks: Sequence[str], *, lost: int = 1
    ) -> timedelta | None:
        parameters = {"names": list(names), "tasks": list(tasks), "lost": min(lost, 1)}
        found: timedelta | None = self._run(connection, NEXT_DUE, parameters, heads=self.sql(HEADS)).scalar()
        return found

    def finish(self, connection: sa.Connection, claims: Sequence[Claim]) -> tuple[str | None, int]:
        # Twice, the second time by name: texts alone are compared faster than keys.
        ordered = sorted(claims, key=lambda claim: claim.row.task_instance)
        ordered.sort(key=lambda claim: claim.row.task_name)
        parameters = {**_fence(claim.row for claim in ordered), "holder": claims[0].holder}
        transaction_id, count = self._run(connection, FINISH, parameters).one()
        return transaction_id, count

    def room(self, connection: sa.Connection, name: str, most: int) -> int:
        """Race: two claims that count at once would both find the last place. So only who gets the lock may count, in
        a statement of its own, which sees what the one before has committed; the other does not wait.
        """
        locked = "SELECT pg_try_advisory_xact_lock(hashtextextended(%(key)s, 0))"
        if not connection.exec_driver_sql(locked, {"key": f"{self._names['tasks']}/{name}"}).scalar_one():
            return 0
        return super().room(connection, name, most)

    def hold(self, connection: sa.Connection, claims: Sequence[Claim], *, wait: bool) -> list[Held]:
        ordered = sorted(claims, key=lambda claim: claim.key)
        parameters = {
            **_fence(claim.row for claim in ordered),
            "holders": [claim.holder for claim in ordered],
        }
        found = self._run(connection, HOLD, parameters, skip="" if wait else " SKIP LOCKED")
        return [
            Held(row=row_of(values), now=utc(now), place=place, transaction_id=transaction_id)
            for now, transaction_id, place, *values in found
        ]

    def entries(
        self, connection: sa.Connection, keys: Sequence[LedgerKey], *, wait: bool
    ) -> dict[LedgerKey, tuple[LedgerEntry | None, str | None]]:
        if not keys:
            return {}
        found = self._entries(connection, sorted(keys), "FOR UPDATE" if wait else "FOR UPDATE SKIP LOCKED")
        absent = [key for key in keys if key not in found]
        # Not returned is not "not there": with SKIP LOCKED it may be locked by a user's guard. Look without a lock.
        exists = {} if wait or not absent else self._entries(connection, absent, "OFFSET 0")
        return {**found, **{key: (None, None) for key in absent if key not in exists}}

    def _entries(
        self, connection: sa.Connection, keys: Sequence[LedgerKey], lock: str
    ) -> dict[LedgerKey, tuple[LedgerEntry | None, str | None]]:
        parameters = {
            "names": [key.task_name for key in keys],
            "instances": [key.task_instance for key in keys],
            "slots": [key.slot for key in keys],
        }
        return {
            LedgerKey(name, instance, utc(slot)): (
                LedgerEntry(outcome=outcome, token=token, final=final, aborted=aborted, started=utc(started)), place
            )
            for place, name, instance, slot, outcome, token, final, aborted, started in self._run(
                connection, ENTRIES, parameters, lock=lock
            )
        }  # fmt: skip

    def let_go(self, connection: sa.Connection, changes: Sequence[Change]) -> int:
        removed = [change for change in changes if change.transition.remove]
        kept = [change for change in changes if not change.transition.remove]
        count = 0
        if removed:
            count += self._run(connection, REMOVE, _places(removed)).rowcount
        if kept:
            rows = [change.transition.row for change in kept if change.transition.row]
            columns = {name: [row[name] for row in rows] for name in CHANGED_COLUMNS}
            parameters, parts = _spread(columns, CHANGED_COLUMNS)
            count += self._run(connection, RELEASE, {**_places(kept), **parameters}, **parts).rowcount
        return count

    def record(self, connection: sa.Connection, changes: Sequence[Change]) -> None:
        written = [change for change in changes if change.ledger_place and change.transition.record]
        forgotten = [change for change in written if change.transition.record and change.transition.record.forget]
        recorded = [change for change in written if change.transition.record and not change.transition.record.forget]
        if forgotten:
            self._run(connection, FORGET, _ledger_places(forgotten))
        if recorded:
            records = [change.transition.record for change in recorded if change.transition.record]
            columns: dict[str, list[Any]] = {
                name: [getattr(record, name) for record in records] for name in RECORDED_COLUMNS if name != "finished"
            }
            columns["finished"] = [
                change.held.now if record.final else None for change, record in zip(recorded, records, strict=True)
            ]
            parameters, parts = _spread(columns, RECORDED_COLUMNS, added="s")
            self._run(connection, RECORD, {**_ledger_places(recorded), **parameters}, **parts)

    def beat(self, connection: sa.Connection, holder: str, claims: Sequence[Claim]) -> set[Fence]:
        parameters = {**_fence(claim.row for claim in claims), "holder": holder}
        return {_fence_of(values) for values in self._run(connection, BEAT, parameters)}

    def still_held(self, connection: sa.Connection, claims: Sequence[Claim]) -> set[Fence]:
        if not claims:
            return set()
        parameters = {**_fence(claim.row for claim in claims), "holder": claims[0].holder}
        return {_fence_of(values) for values in self._run(connection, STILL_HELD, parameters)}

    def silent_rows(self, connection: sa.Connection, names: Sequence[str]) -> tuple[datetime, list[Row]]:
        found = self._run(connection, SILENT, {"names": list(names)}).all()
        now = utc(found[0][0]) if found else self.now(connection)
        return now, [hold_of(values[1:]) for values in found]


#: By the first two of TASK_COLUMNS: the highest priority first, and then the oldest.
_turn = itemgetter(0, 1)


def _fence_of(values: Sequence[Any]) -> Fence:
    name, instance, version = values
    return Fence(Key(name, instance), version)


def _fence(rows: Iterable[Row]) -> dict[str, list[Any]]:
    """Keys and versions as arrays, in the order in which they are to be locked."""
    rows = list(rows)
    return {
        "names": [row.task_name for row in rows],
        "instances": [row.task_instance for row in rows],
        "versions": [row.version for row in rows],
    }


def _spread(
    columns: Mapping[str, list[Any]], kinds: Mapping[str, str], *, added: str | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Parameters and parts of a statement that writes these columns: a column that differs from row to row as an
    array, one that is the same in all rows, as most are, as one value.

    ``added``: the alias of the table whose counts (ADDED_COLUMNS) are added to.
    """
    parameters: dict[str, Any] = {}
    sets, arrays, changed = [], "", ""
    for name, values in columns.items():
        kind, parameter = kinds[name], f"c_{name}"
        if values.count(values[0]) == len(values):
            parameters[parameter], value = values[0], f"%({parameter})s::{kind}"
        else:
            parameters[parameter], value = values, f"i.{name}"
            arrays, changed = f"{arrays}, %({parameter})s::{kind}[]", f"{changed}, {name}"
        sets.append(f"{name} = {added}.{name} + {value}" if added and name in ADDED_COLUMNS else f"{name} = {value}")
    return parameters, {"sets": ", ".join(sets), "arrays": arrays, "changed": changed}


def _places(changes: Sequence[Change]) -> dict[str, Any]:
    return {
        **_fence(change.held.row for change in changes),
        "holders": [change.held.row.picked_by for change in changes],
        "places": [change.held.place for change in changes],
    }


def _ledger_places(changes: Sequence[Change]) -> dict[str, Any]:
    rows = [change.held.row for change in changes]
    return {
        "names": [row.task_name for row in rows],
        "instances": [ledger_instance(row) for row in rows],
        "slots": [row.slot for row in rows],
        "tokens": [row.version for row in rows],
        "places": [change.ledger_place for change in changes],
    }
