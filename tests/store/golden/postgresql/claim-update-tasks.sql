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
          AND d.task_name NOT IN (SELECT p.task_name FROM scheduled_pauses AS p
            WHERE p.scope = 'tasks' AND (p.until IS NULL OR p.until > pg_catalog.statement_timestamp()))
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
         THEN 'payload too large: ' || pg_catalog.length(task_data)::text || ' bytes, at most 1048576 are allowed'
         WHEN version > 4611686018427387901 THEN 'its version cannot rise further; give it a lower one'
         WHEN attempt > 2147483646 THEN 'its attempts cannot be counted; set attempt to 0' END
FROM due
ORDER BY -coalesce(priority, 50), execution_time;
