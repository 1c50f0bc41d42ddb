SELECT pg_catalog.statement_timestamp(), pg_catalog.pg_current_xact_id()::text, q.task_name, q.task_instance,
    q.execution_time, q.version, q.picked, q.picked_by, NULL::bytea, q.last_success, q.last_failure,
    q.consecutive_failures, q.last_heartbeat, q.priority, q.kind, q.slot, q.watermark, q.next_slot, q.schedule,
    q.plan_instance, q.origin, q.collapsed, q.created_version, q.attempt, q.lost_count, q.lease, q.state,
    q.cancel_requested, q.control, q.parked_due, q.wanted_due, q.unheld_since, q.marked, q.pending::text
FROM unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[], %(holders)s::text[])
     AS i(task_name, task_instance, version, holder)
CROSS JOIN LATERAL (
    SELECT h.* FROM scheduled_tasks AS h
    WHERE h.task_name = i.task_name AND h.task_instance = i.task_instance
      AND CASE WHEN h.picked AND h.version = i.version THEN h.picked_by = i.holder ELSE false END
    FOR UPDATE) AS q;

SELECT l.task_name, l.task_instance, l.slot, l.outcome, l.token, l.finished IS NOT NULL,
    l.aborted,
    l.started
FROM unnest(%(names)s::text[], %(instances)s::text[], %(slots)s::timestamptz[])
    AS i(task_name, task_instance, slot)
CROSS JOIN LATERAL (
    SELECT e.* FROM scheduled_slots AS e
    WHERE e.task_name = i.task_name AND e.task_instance = i.task_instance AND e.slot = i.slot
    FOR UPDATE) AS l;

SELECT greatest(
    (SELECT s.slot FROM scheduled_slots AS s
     WHERE s.task_name = i.task_name AND s.task_instance = i.task_instance
         AND s.origin IN ('schedule', 'catch_up')
       AND (s.finished IS NOT NULL OR s.outcome <> 'claimed'
           AND i.task_name = ANY (%(strict)s::text[]))
     ORDER BY s.slot DESC LIMIT 1),
    (SELECT g.last_slot FROM scheduled_gaps AS g
     WHERE g.task_name = i.task_name AND g.task_instance = i.task_instance
     ORDER BY g.first_slot DESC LIMIT 1))
FROM unnest(%(names)s::text[], %(instances)s::text[]) WITH ORDINALITY
    AS i(task_name, task_instance, turn)
ORDER BY i.turn;

WITH held AS MATERIALIZED (
    SELECT h.ctid AS place, i.*
    FROM unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[],
        %(holders)s::text[])
         AS i(task_name, task_instance, version, holder)
    CROSS JOIN LATERAL (
        SELECT t.ctid FROM scheduled_tasks AS t
        WHERE t.task_name = i.task_name AND t.task_instance = i.task_instance
          AND CASE WHEN t.version = i.version THEN t.picked_by = i.holder ELSE false END
        OFFSET 0) AS h
)
UPDATE scheduled_tasks AS t
SET picked = false, picked_by = NULL, last_heartbeat = NULL, lease = NULL,
    cancel_requested = NULL, wanted_due = NULL, marked = NULL,
    version = least(t.version, 4611686018427387901 + 1) + 1, execution_time = %(c_execution_time)s::timestamptz,
        slot = %(c_slot)s::timestamptz, next_slot = %(c_next_slot)s::timestamptz, watermark =
        %(c_watermark)s::timestamptz, schedule = %(c_schedule)s::text, origin = %(c_origin)s::text, collapsed =
        %(c_collapsed)s::bigint, attempt = %(c_attempt)s::integer, lost_count = %(c_lost_count)s::integer, state =
        %(c_state)s::text, control = %(c_control)s::bigint, parked_due = %(c_parked_due)s::timestamptz,
        consecutive_failures = %(c_consecutive_failures)s::integer, unheld_since = %(c_unheld_since)s::timestamptz,
        last_success = %(c_last_success)s::timestamptz, last_failure = %(c_last_failure)s::timestamptz, last_error =
        %(c_last_error)s::text, pending = %(c_pending)s::json
FROM held AS i
WHERE t.ctid = ANY (ARRAY(SELECT place FROM held)) AND t.ctid = i.place
  AND t.version = i.version AND t.picked_by = i.holder;

WITH known AS MATERIALIZED (
    SELECT e.ctid AS place, i.*
    FROM unnest(%(names)s::text[], %(instances)s::text[], %(slots)s::timestamptz[],
        %(tokens)s::bigint[])
         AS i(task_name, task_instance, slot, token)
    CROSS JOIN LATERAL (
        SELECT s.ctid FROM scheduled_slots AS s
        WHERE s.task_name = i.task_name AND s.task_instance = i.task_instance AND s.slot = i.slot
          AND CASE WHEN s.token = i.token THEN s.finished IS NULL ELSE false END
        OFFSET 0) AS e
)
UPDATE scheduled_slots AS s
SET outcome = %(c_outcome)s::text, reason = %(c_reason)s::text, error = %(c_error)s::text, attempts =
    %(c_attempts)s::integer, lost = s.lost + %(c_lost)s::integer, aborted = s.aborted + %(c_aborted)s::integer,
    finished = %(c_finished)s::timestamptz
FROM known AS i
WHERE s.ctid = ANY (ARRAY(SELECT place FROM known)) AND s.ctid = i.place
  AND s.token = i.token AND s.finished IS NULL;

WITH found AS MATERIALIZED (
    SELECT i.*, o.is_open, coalesce(b.first_slot, i.first_slot) AS begin,
        coalesce(b.count, 0) + i.count AS total
    FROM unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[],
        %(holders)s::text[],
                %(firsts)s::timestamptz[], %(lasts)s::timestamptz[], %(counts)s::bigint[],
                    %(reasons)s::text[],
                %(afters)s::timestamptz[])
         WITH ORDINALITY
         AS i(task_name, task_instance, version, holder, first_slot, last_slot, count, reason,
             after, turn)
    CROSS JOIN LATERAL (SELECT (
        SELECT true FROM scheduled_slots AS s
        WHERE s.task_name = i.task_name AND s.task_instance = i.task_instance
          AND s.slot >= i.first_slot AND s.slot <= i.last_slot
          AND CASE WHEN s.finished IS NULL THEN s.token <> i.version
              OR s.worker <> coalesce(i.holder, '')
                   ELSE false END
        LIMIT 1) AS is_open) AS o
    LEFT JOIN LATERAL (
        SELECT n.first_slot, n.count FROM (
            SELECT g.first_slot, g.last_slot, g.count, g.reason FROM scheduled_gaps AS g
            WHERE g.task_name = i.task_name AND g.task_instance = i.task_instance
            ORDER BY g.first_slot DESC LIMIT 1) AS n
        WHERE n.last_slot = i.after AND n.reason = i.reason AND i.count > 1 AND o.is_open IS NULL
          AND (SELECT true FROM scheduled_slots AS s
               WHERE s.task_name = i.task_name AND s.task_instance = i.task_instance
                 AND s.slot > n.last_slot AND s.slot < i.first_slot
               LIMIT 1) IS NULL) AS b ON true
), skipped AS (
    INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, reason, finished)
    SELECT task_name, task_instance, first_slot, 'skipped', reason, %(at)s::timestamptz FROM found
        WHERE count = 1
    ON CONFLICT DO NOTHING
), entered AS (
    INSERT INTO scheduled_gaps AS g (task_name, task_instance, first_slot, last_slot, count, reason,
        created)
    SELECT DISTINCT ON (task_name, task_instance, begin)
        task_name, task_instance, begin, last_slot, total, reason, %(at)s::timestamptz
    FROM found WHERE count > 1
    ORDER BY task_name, task_instance, begin, last_slot DESC
    ON CONFLICT (task_name, task_instance, first_slot) DO UPDATE
    SET last_slot = excluded.last_slot, count = excluded.count, reason = excluded.reason,
        created = excluded.created
    WHERE excluded.last_slot > g.last_slot
)
SELECT turn FROM found WHERE is_open;

INSERT INTO scheduled_attempts (task_name, task_instance, slot, token, number, worker, claimed, started, ended,
    outcome, reason, error) VALUES (%(task_name)s::TEXT, %(task_instance)s::TEXT, %(slot)s::TIMESTAMP WITH TIME
    ZONE, %(token)s::BIGINT, %(number)s::INTEGER, %(worker)s::TEXT, %(claimed)s::TIMESTAMP WITH TIME ZONE,
    %(started)s::TIMESTAMP WITH TIME ZONE, %(ended)s::TIMESTAMP WITH TIME ZONE, %(outcome)s::TEXT, %(reason)s::TEXT,
    %(error)s::TEXT) ON CONFLICT DO NOTHING RETURNING scheduled_attempts.task_name;
