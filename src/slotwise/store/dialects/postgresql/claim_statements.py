"""PostgreSQL's statements of a claim, as text that can be read and EXPLAINed as it is; and the rows they return.

Rules behind them, each from an experiment:
- "now" is statement_timestamp(): clock_timestamp() is volatile and keeps the index from being used.
- The claim has no join to choose: rows are found by ctid, which cannot flip to a hash join with a sequential scan.
- Priority is asked of the oldest due rows only: an index led by it makes a claim that finds nothing walk all rows of
  the future, and without an end to what is sorted a claim costs as much as the whole backlog.
- Rows that were lost before are few, and have an index of their own; both finds are cut to the limit at the end, and
  not by a LIMIT that is computed, at which the planner can only guess.
- The claim's UPDATE repeats the conditions of its SELECT: a ctid may have been reused in between. It does so within
  a CASE, which no index fits: else, on a table never analysed, the rows are looked for once more, and all that are due.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from slotwise.model.records import Row
from slotwise.store.dialects.row_statements import MAY_START
from slotwise.store.schema.column_types import Beyond
from slotwise.store.schema.rows import LAST_TOKEN, refuse_unusable, utc

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
        {fresh}
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
      AND (attempt > 1 OR coalesce(origin, 'schedule') NOT IN ('schedule', 'catch_up')
           OR NOT (task_name = ANY (%(weighed)s::text[])
                   OR %(late)s::interval IS NOT NULL AND (origin = 'catch_up' OR slot < {now} - %(late)s::interval)))
    {again}
    RETURNING s.task_name, s.task_instance, s.slot, s.token
)
SELECT {now}, schedule IS NULL AND plan_instance IS NULL OR EXISTS (
        SELECT FROM ledger AS l
        WHERE l.task_name = due.task_name AND l.task_instance = coalesce(due.plan_instance, due.task_instance)
          AND l.slot = due.slot AND l.token = due.version),
    {slot_columns}
FROM due
ORDER BY -coalesce(priority, 50), execution_time"""

#: How a slot is entered that the ledger has already, by CLAIM and by BEGIN.
AGAIN = f"""\
ON CONFLICT (task_name, task_instance, slot) DO UPDATE
    SET outcome = excluded.outcome, reason = NULL, attempts = s.attempts + 1, collapsed = excluded.collapsed,
        token = excluded.token, worker = excluded.worker, started = excluded.started, started_before = s.started
    WHERE {MAY_START}"""

#: Of the oldest due rows, those of the highest priority; the oldest, where all of those have the same.
MOST_URGENT = """\
SELECT c.ctid FROM {tasks} AS c
        WHERE c.ctid = ANY (ARRAY(
            SELECT d.ctid FROM {tasks} AS d
            WHERE NOT d.picked AND d.state IS NULL AND d.lost_count = 0 AND d.execution_time <= {now}
              AND d.task_name = ANY (%(names)s::text[]){who}{kind}
            ORDER BY d.execution_time
            LIMIT {window}))
          AND CASE WHEN c.picked OR c.state IS NOT NULL THEN false ELSE c.execution_time <= {now} END
        ORDER BY -coalesce(c.priority, 50), c.execution_time"""
OLDEST = """\
SELECT d.ctid FROM {tasks} AS d
        WHERE NOT d.picked AND d.state IS NULL AND d.lost_count = 0 AND d.execution_time <= {now}
          AND d.task_name = ANY (%(names)s::text[]){who}{kind}
        ORDER BY d.execution_time"""

#: For every claim but that of a row which an operator runs himself. Asked once per statement, not per row.
ALL_PAUSED = "\n          AND NOT EXISTS (SELECT FROM {meta} WHERE key = 'paused')"
HAS_SLOT = "\n          AND (d.schedule IS NOT NULL OR d.plan_instance IS NOT NULL)"

DUE_NAMES = """\
(SELECT d.task_name, coalesce(d.priority, 50) FROM {tasks} AS d
 WHERE NOT d.picked AND d.state IS NULL AND (d.schedule IS NOT NULL OR d.plan_instance IS NOT NULL)
   AND d.execution_time <= {now}
 ORDER BY d.execution_time LIMIT %(limit)s)
UNION ALL
(SELECT d.task_name, coalesce(d.priority, 50) FROM {tasks} AS d
 WHERE NOT d.picked AND d.state IS NULL AND d.lost_count > 0 AND d.execution_time <= {now}
 ORDER BY d.execution_time LIMIT %(limit)s)"""

# One descent into the index for each priority that is not known yet, and none for those that are: rows of others, rows
# of the future, and dead entries in front of a mark (marks.py) cost nothing.
HEADS = """\
    WITH RECURSIVE heads AS (
        SELECT n.task_name, n.turn, n.last, n.since, CASE WHEN n.first = n.last THEN n.first ELSE (
            SELECT -coalesce(q.priority, 50) FROM {tasks} AS q
            WHERE q.task_name = n.task_name AND NOT q.picked AND q.state IS NULL
              AND q.schedule IS NULL AND q.plan_instance IS NULL
              AND -coalesce(q.priority, 50) >= n.first AND -coalesce(q.priority, 50) <= n.last
            ORDER BY -coalesce(q.priority, 50) LIMIT 1) END AS rank
        FROM unnest(%(heads)s::text[], %(firsts)s::integer[], %(lasts)s::integer[], %(sinces)s::timestamptz[])
             WITH ORDINALITY AS n(task_name, first, last, since, turn)
        WHERE NOT EXISTS (SELECT FROM {meta} WHERE key = 'paused')
        UNION ALL
        SELECT h.task_name, h.turn, h.last, h.since, (
            SELECT -coalesce(q.priority, 50) FROM {tasks} AS q
            WHERE q.task_name = h.task_name AND NOT q.picked AND q.state IS NULL
              AND q.schedule IS NULL AND q.plan_instance IS NULL
              AND -coalesce(q.priority, 50) > h.rank AND -coalesce(q.priority, 50) <= h.last
            ORDER BY -coalesce(q.priority, 50) LIMIT 1)
        FROM heads AS h WHERE h.rank < h.last)"""

# The version's part is a SELECT so that it is computed once, and not for each row.
CLAIM_TASKS = """\
UPDATE {tasks} AS t
SET picked = true, picked_by = %(holder)s, last_heartbeat = {now}, lease = %(lease)s,
    version = greatest(t.version + 1, (SELECT (extract(epoch FROM {now}) * 1000000)::bigint)), attempt = t.attempt + 1
WHERE t.ctid = ANY (ARRAY(
    {heads}
    SELECT d.ctid FROM (SELECT task_name, rank, since FROM heads WHERE rank IS NOT NULL ORDER BY rank, turn) AS p
    CROSS JOIN LATERAL (
        SELECT w.ctid FROM {tasks} AS w
        WHERE w.task_name = p.task_name AND -coalesce(w.priority, 50) = p.rank AND NOT w.picked AND w.state IS NULL
          AND w.schedule IS NULL AND w.plan_instance IS NULL AND w.lost_count = 0 AND w.execution_time <= {now}
          AND w.execution_time >= p.since
        ORDER BY w.execution_time
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED) AS d
    LIMIT %(limit)s))
  AND CASE WHEN t.picked OR t.state IS NOT NULL OR t.schedule IS NOT NULL OR t.plan_instance IS NOT NULL THEN false
           ELSE t.execution_time <= {now} AND t.task_name = ANY (%(tasks)s::text[]) END
RETURNING {task_columns}, {slots_are_due}"""

#: Whether anything is due that is for the other claim, whoever's it is: asked once, of the ends of two indexes.
SLOTS_ARE_DUE = """\
coalesce(
    (SELECT true FROM {tasks} AS d
     WHERE NOT d.picked AND d.state IS NULL AND (d.schedule IS NOT NULL OR d.plan_instance IS NOT NULL)
       AND d.execution_time <= {now}
     ORDER BY d.execution_time LIMIT 1),
    (SELECT true FROM {tasks} AS d
     WHERE NOT d.picked AND d.state IS NULL AND d.lost_count > 0 AND d.execution_time <= {now}
     ORDER BY d.execution_time LIMIT 1),
    false)"""

# Slots and lost rows of these tasks are few: whoever is due is read. Of others the first is, not by an EXISTS, which
# might be made a join with all of them.
DUE_TASKS = """\
{heads}
(SELECT p.task_name FROM heads AS p WHERE (
    SELECT true FROM {tasks} AS w
    WHERE w.task_name = p.task_name AND -coalesce(w.priority, 50) = p.rank AND NOT w.picked AND w.state IS NULL
      AND w.schedule IS NULL AND w.plan_instance IS NULL AND w.lost_count = 0 AND w.execution_time <= {now}
    ORDER BY w.execution_time LIMIT 1))
UNION
(SELECT d.task_name FROM {tasks} AS d
 WHERE NOT d.picked AND d.state IS NULL AND (d.schedule IS NOT NULL OR d.plan_instance IS NOT NULL)
   AND d.execution_time <= {now} AND d.task_name = ANY (%(tasks)s::text[]))
UNION
(SELECT d.task_name FROM {tasks} AS d
 WHERE NOT d.picked AND d.state IS NULL AND d.lost_count > 0 AND d.execution_time <= {now}
   AND d.task_name = ANY (%(tasks)s::text[]))"""

# The names of the second part stand in a CASE, which no index fits: a generic plan takes an array for ten names, and
# would read all rows of these by the key. They are a subquery, and so a hash: ten thousand are not compared one by one.
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
       AND CASE WHEN d.lost_count = 0 THEN d.task_name IN (SELECT unnest(%(names)s::text[])) ELSE false END
       AND NOT EXISTS (SELECT FROM {meta} WHERE key = 'paused')
     ORDER BY d.execution_time LIMIT 1)
    UNION ALL
    (SELECT d.execution_time FROM heads AS p CROSS JOIN LATERAL (
        SELECT w.execution_time FROM {tasks} AS w
        WHERE w.task_name = p.task_name AND -coalesce(w.priority, 50) = p.rank AND NOT w.picked AND w.state IS NULL
          AND w.schedule IS NULL AND w.plan_instance IS NULL AND w.lost_count = 0
        ORDER BY w.execution_time LIMIT 1) AS d)) AS waiting(due)
HAVING min(due) IS NOT NULL"""

#: What a claim reads of a slot's row: what it has written itself is known. A watermark at the slot, as most are then,
#: is left out.
SLOT_COLUMNS = (
    "task_name", "task_instance", "execution_time", "version", "task_data", "last_success", "last_failure",
    "consecutive_failures", "priority", "slot",
    "CASE WHEN schedule IS NULL OR watermark IS DISTINCT FROM slot THEN watermark END", "next_slot", "schedule",
    "plan_instance", "origin", "collapsed", "first_version", "attempt", "lost_count", "cancel_requested", "control",
    "catch_up_until", "parked_due", "wanted_due", "trying_since", "unheld_since",
)  # fmt: skip

#: What a claim reads of a one-time task: the rest of its columns is empty, or read again by the settlement. Most have
#: their first due time in the place of a slot: it is read only if it differs.
TASK_COLUMNS = (
    "-coalesce(t.priority, 50)", "t.execution_time", "t.task_name", "t.task_instance", "t.version", "t.task_data",
    "t.slot IS NOT DISTINCT FROM t.execution_time", "nullif(t.slot, t.execution_time)", "t.first_version", "t.attempt",
    "t.cancel_requested", "t.last_heartbeat",
)  # fmt: skip


def slot_of(values: Sequence[Any], holder: str, lease: timedelta, now: datetime) -> Row:
    """A Row of values that come in the order of SLOT_COLUMNS; one is made for each slot that runs."""
    (
        name, instance, due, version, data, last_success, last_failure, failures, priority, slot, watermark, next_slot,
        schedule, plan_instance, origin, collapsed, first_version, attempt, lost_count, cancel, control, until, parked,
        wanted, since, unheld_since,
    ) = values  # fmt: skip
    slot, next_slot = utc(slot), utc(next_slot)
    watermark = slot if watermark is None and schedule is not None else utc(watermark)
    instants = {"slot": slot, "next_slot": next_slot, "watermark": watermark, "catch_up_until": until}
    if version >= LAST_TOKEN or Beyond in map(type, instants.values()):
        refuse_unusable({**instants, "version": version})
    return Row(
        task_name=name, task_instance=instance, execution_time=utc(due), version=version, picked=True, picked_by=holder,
        task_data=data, last_success=utc(last_success), last_failure=utc(last_failure),
        consecutive_failures=failures or 0, last_heartbeat=now, priority=priority, slot=slot, watermark=watermark,
        next_slot=next_slot, schedule=schedule, plan_instance=plan_instance, origin=origin, collapsed=collapsed,
        first_version=first_version, attempt=attempt, lost_count=lost_count, lease=lease, cancel_requested=utc(cancel),
        control=control, catch_up_until=utc(until), parked_due=utc(parked), wanted_due=utc(wanted),
        trying_since=utc(since), unheld_since=utc(unheld_since),
    )  # fmt: skip


def task_of(values: Sequence[Any], holder: str) -> Row:
    """A Row of values that come in the order of TASK_COLUMNS; one is made for each task that runs. It is read whatever
    stands in it, for it is held already: ``refuse_unusable`` says whether it can be run.
    """
    rank, due, name, instance, version, data, slot_is_due, slot, first_version, attempt, cancel, claimed, _ = values
    due = utc(due)
    return Row(
        task_name=name, task_instance=instance, execution_time=due, version=version, picked=True, picked_by=holder,
        priority=-rank, task_data=data, slot=due if slot_is_due else utc(slot), first_version=first_version,
        attempt=attempt, cancel_requested=utc(cancel), last_heartbeat=utc(claimed),
    )  # fmt: skip
