WITH due AS (
    UPDATE scheduled_tasks AS t
    SET picked = true, picked_by = %(holder)s, last_heartbeat = pg_catalog.statement_timestamp(), lease = %(lease)s,
        version = greatest(least(t.version, 4611686018427387901) + 1,
            (extract(epoch FROM pg_catalog.statement_timestamp()) * 1000000.0)::bigint),
        attempt = least(t.attempt, 2147483646) + 1,
        watermark = CASE WHEN t.kind = 'plan' THEN greatest(t.watermark, t.slot)
            ELSE t.watermark END
    WHERE t.ctid = ANY ((ARRAY(
        SELECT d.ctid FROM scheduled_tasks AS d
        WHERE NOT d.picked AND d.state IS NULL AND d.lost_count > 0
            AND d.execution_time <= pg_catalog.statement_timestamp()
          AND (d.task_name IN (SELECT pg_catalog.unnest(%(names)s::text[]))) IS TRUE
          AND NOT EXISTS (SELECT FROM scheduled_meta WHERE key = 'paused')
        ORDER BY d.execution_time
        LIMIT %(lost)s
        FOR UPDATE SKIP LOCKED) || ARRAY(
        SELECT c.ctid FROM scheduled_tasks AS c
        WHERE c.ctid = ANY (ARRAY(
            SELECT d.ctid FROM scheduled_tasks AS d
            WHERE NOT d.picked AND d.state IS NULL AND d.lost_count = 0
                AND d.execution_time <= pg_catalog.statement_timestamp()
              AND (d.task_name IN (SELECT pg_catalog.unnest(%(names)s::text[]))) IS TRUE
          AND NOT EXISTS (SELECT FROM scheduled_meta WHERE key = 'paused')
          AND d.kind <> 'task'
            ORDER BY d.execution_time
            LIMIT 1000))
          AND CASE WHEN c.picked OR c.state IS NOT NULL THEN false
              ELSE c.execution_time <= pg_catalog.statement_timestamp() END
        ORDER BY -coalesce(c.priority, 50), c.execution_time
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED))[1:%(limit)s::integer])
      AND CASE WHEN t.picked OR t.state IS NOT NULL THEN false
               ELSE t.execution_time <= pg_catalog.statement_timestamp()
                   AND t.task_name IN (SELECT pg_catalog.unnest(%(names)s::text[])) END
    RETURNING t.task_name, t.task_instance, t.execution_time, t.version, t.picked, t.picked_by, t.task_data,
        t.last_success, t.last_failure, t.consecutive_failures, t.last_heartbeat, t.priority, t.kind, t.slot,
        t.watermark, t.next_slot, t.schedule, t.plan_instance, t.origin, t.collapsed, t.created_version, t.attempt,
        t.lost_count, t.lease, t.state, t.cancel_requested, t.control, t.parked_due, t.wanted_due, t.unheld_since,
        t.marked, t.pending
), ledger AS (
    INSERT INTO scheduled_slots AS s
        (task_name, task_instance, slot, outcome, origin, attempts, collapsed, token, worker,
            started)
    SELECT DISTINCT ON (task_name, coalesce(plan_instance, task_instance), slot)
        task_name, coalesce(plan_instance, task_instance), slot,
        CASE WHEN task_name = ANY (%(strict)s::text[]) THEN 'claimed' ELSE 'running' END,
        coalesce(origin, 'schedule'), attempt, collapsed, version, picked_by,
        CASE WHEN task_name = ANY (%(strict)s::text[]) THEN NULL ELSE pg_catalog.statement_timestamp() END
    FROM due
    WHERE slot IS NOT NULL
      AND (kind = 'detached' OR kind = 'plan'
          AND (attempt > 1 OR next_slot IS NULL OR next_slot > pg_catalog.statement_timestamp()))
      AND (attempt > 1 OR coalesce(origin, 'schedule') NOT IN ('schedule', 'catch_up')
           OR NOT (task_name = ANY (%(weighed)s::text[])
                   OR %(late)s::interval IS NOT NULL
                       AND (origin = 'catch_up' OR slot < pg_catalog.statement_timestamp() - %(late)s::interval)))
    ON CONFLICT (task_name, task_instance, slot) DO UPDATE
    SET outcome = excluded.outcome, reason = NULL,
        attempts = least(s.attempts, 2147483646) + 1,
        collapsed = excluded.collapsed, token = excluded.token, worker = excluded.worker,
        started = excluded.started, started_before = s.started
    WHERE s.finished IS NULL AND s.outcome <> 'running'
      AND (s.attempts = 0 OR NOT excluded.task_name = ANY (%(strict)s::text[]))
    RETURNING s.task_name, s.task_instance, s.slot, s.token
)
SELECT pg_catalog.statement_timestamp(), kind = 'task' OR EXISTS (
        SELECT FROM ledger AS l
        WHERE l.task_name = due.task_name
            AND l.task_instance = coalesce(due.plan_instance, due.task_instance)
          AND l.slot = due.slot AND l.token = due.version),
    task_name, task_instance, execution_time, version, CASE WHEN pg_catalog.length(task_data) <= 1048640 THEN
        task_data END, last_success, last_failure, consecutive_failures, priority, kind, slot, CASE WHEN kind <>
        'plan' OR watermark IS DISTINCT FROM slot THEN watermark END, next_slot, schedule, plan_instance, origin,
        collapsed, created_version, attempt, lost_count, cancel_requested, control, parked_due, wanted_due,
        unheld_since, pending::text, CASE WHEN pg_catalog.length(task_data) > 1048640
         THEN 'payload too large: ' || pg_catalog.length(task_data) || ' bytes, at most 1048576 are allowed'
         WHEN version > 4611686018427387901 THEN 'its version cannot rise further; give it a lower one'
         WHEN attempt > 2147483646 THEN 'its attempts cannot be counted; set attempt to 0' END
FROM due
ORDER BY -coalesce(priority, 50), execution_time;

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
), begun AS (
    UPDATE scheduled_tasks AS t
    SET slot = %(c_slot)s::timestamptz, next_slot = %(c_next_slot)s::timestamptz, watermark =
        %(c_watermark)s::timestamptz, origin = %(c_origin)s::text, collapsed = %(c_collapsed)s::bigint, attempt =
        %(c_attempt)s::integer, lost_count = %(c_lost_count)s::integer, pending = %(c_pending)s::json
    FROM held AS i
    WHERE t.ctid = ANY (ARRAY(SELECT place FROM held)) AND t.ctid = i.place
  AND t.version = i.version AND t.picked_by = i.holder
    RETURNING t.*
), ledger AS (
    INSERT INTO scheduled_slots AS s
        (task_name, task_instance, slot, outcome, origin, attempts, collapsed, token, worker,
            started)
    SELECT task_name, coalesce(plan_instance, task_instance), slot,
        CASE WHEN task_name = ANY (%(strict)s::text[]) THEN 'claimed' ELSE 'running' END,
        coalesce(origin, 'schedule'), attempt, collapsed, version, picked_by,
        CASE WHEN task_name = ANY (%(strict)s::text[]) THEN NULL ELSE %(claimed_at)s::timestamptz END
    FROM begun
    ON CONFLICT (task_name, task_instance, slot) DO UPDATE
    SET outcome = excluded.outcome, reason = NULL,
        attempts = least(s.attempts, 2147483646) + 1,
        collapsed = excluded.collapsed, token = excluded.token, worker = excluded.worker,
        started = excluded.started, started_before = s.started
    WHERE s.finished IS NULL AND s.outcome <> 'running'
      AND (s.attempts = 0 OR NOT excluded.task_name = ANY (%(strict)s::text[]))
    RETURNING s.task_name, s.task_instance, s.slot, s.token
)
SELECT b.count, l.task_name, l.task_instance, l.slot
FROM (SELECT pg_catalog.count(*) FROM begun) AS b LEFT JOIN ledger AS l ON true;
