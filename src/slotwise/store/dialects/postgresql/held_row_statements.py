"""PostgreSQL's statements about held rows, as text: renew and look, lock, let go.

They are found by key in a join that is LATERAL, or by the place that a lock has found: no plan to choose.
Heartbeat and reaper never wait (SKIP LOCKED); settlements lock in key order, so they cannot deadlock.
"""

from __future__ import annotations

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

# Row and ledger row are found by key, one after the other, and written by place. What a row is checked against, and
# what it moves on to, may differ from row to row, or be the same for all.
ADVANCE = """\
WITH held AS MATERIALIZED (
    SELECT h.ctid AS place, e.ctid AS entry, i.*
    FROM unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[]{arrays}) WITH ORDINALITY
         AS i(task_name, task_instance, version{changed}, turn)
    CROSS JOIN LATERAL (
        SELECT t.ctid FROM {tasks} AS t
        WHERE t.task_name = i.task_name AND t.task_instance = i.task_instance
          AND CASE WHEN t.picked AND t.version = i.version AND t.picked_by = %(holder)s
                   THEN t.kind = 'plan' AND t.slot = {slot} AND t.watermark = {slot} AND t.schedule = {schedule}
                        AND ({next_slot} IS NULL OR {next_slot} > {now})
                        AND t.attempt = 1 AND t.lost_count = 0 AND t.collapsed = 0 AND {unasked}
                   ELSE false END
        FOR UPDATE SKIP LOCKED) AS h
    CROSS JOIN LATERAL (
        SELECT s.ctid FROM {slots} AS s
        WHERE s.task_name = i.task_name AND s.task_instance = i.task_instance AND s.slot = {slot}
          AND CASE WHEN s.token = i.version THEN s.finished IS NULL AND s.outcome = 'running' ELSE false END
        OFFSET 0) AS e
), gone AS (
    UPDATE {tasks} AS t
    SET picked = false, picked_by = NULL, last_heartbeat = NULL, lease = NULL, version = t.version + 1, attempt = 0,
        execution_time = {due}, slot = {next_slot}, next_slot = {after_next},
        consecutive_failures = 0, last_success = {now}, last_error = NULL
    FROM held AS i
    WHERE t.ctid = ANY (ARRAY(SELECT place FROM held)) AND t.ctid = i.place
      AND t.version = i.version AND t.picked_by = %(holder)s
    RETURNING i.entry, i.turn
), told AS (
    UPDATE {slots} AS s
    SET outcome = 'succeeded', reason = NULL, error = NULL, attempts = 1, finished = {now}
    WHERE s.ctid = ANY (ARRAY(SELECT entry FROM gone)) AND s.finished IS NULL AND s.outcome = 'running'
    RETURNING 1)
SELECT pg_current_xact_id()::text, (SELECT count(*) FROM told), ARRAY(SELECT turn FROM gone)"""

HOLD = """\
SELECT {now}, pg_current_xact_id()::text, q.ctid::text, {q_columns}
FROM unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[], %(holders)s::text[])
     AS i(task_name, task_instance, version, holder)
CROSS JOIN LATERAL (
    SELECT h.ctid, h.* FROM {tasks} AS h
    WHERE h.task_name = i.task_name AND h.task_instance = i.task_instance
      AND CASE WHEN h.picked AND h.version = i.version THEN h.picked_by = i.holder ELSE false END
    FOR UPDATE{skip}) AS q"""

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
