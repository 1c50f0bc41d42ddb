WITH due AS (
    UPDATE scheduled_tasks AS t
    SET picked = true, picked_by = %(holder)s, last_heartbeat = statement_timestamp(), lease = %(lease)s,
        version = greatest(t.version + 1, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint), attempt =
            t.attempt + 1,
        watermark = CASE WHEN t.schedule IS NULL THEN t.watermark ELSE greatest(t.watermark, t.slot) END
    WHERE t.ctid = ANY ((ARRAY(
        SELECT d.ctid FROM scheduled_tasks AS d
        WHERE NOT d.picked AND d.state IS NULL AND d.lost_count > 0 AND d.execution_time <= statement_timestamp()
          AND d.task_name = ANY (%(names)s::text[])
          AND NOT EXISTS (SELECT FROM scheduled_meta WHERE key = 'paused')
        ORDER BY d.execution_time
        LIMIT %(lost)s
        FOR UPDATE SKIP LOCKED) || ARRAY(
        SELECT c.ctid FROM scheduled_tasks AS c
        WHERE c.ctid = ANY (ARRAY(
            SELECT d.ctid FROM scheduled_tasks AS d
            WHERE NOT d.picked AND d.state IS NULL AND d.lost_count = 0 AND d.execution_time <=
                statement_timestamp()
              AND d.task_name = ANY (%(names)s::text[])
          AND NOT EXISTS (SELECT FROM scheduled_meta WHERE key = 'paused')
          AND (d.schedule IS NOT NULL OR d.plan_instance IS NOT NULL)
            ORDER BY d.execution_time
            LIMIT 1000))
          AND CASE WHEN c.picked OR c.state IS NOT NULL THEN false ELSE c.execution_time <= statement_timestamp()
              END
        ORDER BY -coalesce(c.priority, 50), c.execution_time
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED))[1:%(limit)s::integer])
      AND CASE WHEN t.picked OR t.state IS NOT NULL THEN false
               ELSE t.execution_time <= statement_timestamp() AND t.task_name = ANY (%(names)s::text[]) END
    RETURNING t.task_name, t.task_instance, t.execution_time, t.version, t.picked, t.picked_by, t.task_data,
        t.last_success, t.last_failure, t.consecutive_failures, t.last_heartbeat, t.priority, t.slot, t.watermark,
        t.next_slot, t.schedule, t.plan_instance, t.origin, t.collapsed, t.first_version, t.attempt, t.lost_count,
        t.lease, t.state, t.cancel_requested, t.control, t.catch_up_until, t.parked_due, t.wanted_due,
        t.trying_since
), ledger AS (
    INSERT INTO scheduled_slots AS s
        (task_name, task_instance, slot, outcome, origin, attempts, collapsed, token, worker, started)
    SELECT DISTINCT ON (task_name, coalesce(plan_instance, task_instance), slot)
        task_name, coalesce(plan_instance, task_instance), slot,
        CASE WHEN task_name = ANY (%(strict)s::text[]) THEN 'claimed' ELSE 'running' END,
        coalesce(origin, 'schedule'), attempt, collapsed, version, picked_by,
        CASE WHEN task_name = ANY (%(strict)s::text[]) THEN NULL ELSE statement_timestamp() END
    FROM due
    WHERE slot IS NOT NULL
      AND (plan_instance IS NOT NULL
           OR schedule IS NOT NULL AND (attempt > 1 OR next_slot IS NULL OR next_slot > statement_timestamp()))
    ON CONFLICT (task_name, task_instance, slot) DO UPDATE
    SET outcome = excluded.outcome, reason = NULL, attempts = s.attempts + 1, collapsed = excluded.collapsed,
        token = excluded.token, worker = excluded.worker, started = excluded.started, started_before = s.started
    WHERE s.finished IS NULL AND s.outcome <> 'running'
      AND (s.attempts = 0 OR NOT excluded.task_name = ANY (%(strict)s::text[]))
    RETURNING s.task_name, s.task_instance, s.slot, s.token
)
SELECT statement_timestamp(), schedule IS NULL AND plan_instance IS NULL OR EXISTS (
        SELECT FROM ledger AS l
        WHERE l.task_name = due.task_name AND l.task_instance = coalesce(due.plan_instance, due.task_instance)
          AND l.slot = due.slot AND l.token = due.version),
    task_name, task_instance, execution_time, version, task_data, last_success, last_failure, consecutive_failures,
        priority, slot, CASE WHEN schedule IS NULL OR watermark IS DISTINCT FROM slot THEN watermark END, next_slot,
        schedule, plan_instance, origin, collapsed, first_version, attempt, lost_count, cancel_requested, control,
        catch_up_until, parked_due, wanted_due, trying_since
FROM due
ORDER BY -coalesce(priority, 50), execution_time;

SELECT (SELECT scheduled_slots.slot
FROM scheduled_slots
WHERE scheduled_slots.task_name = %(name)s::VARCHAR AND scheduled_slots.task_instance = %(instance)s::VARCHAR AND
    scheduled_slots.origin IN (%(origin_1_1)s::VARCHAR, %(origin_1_2)s::VARCHAR) AND scheduled_slots.finished IS NOT
    NULL ORDER BY scheduled_slots.slot DESC
 LIMIT %(param_1)s::INTEGER) AS anon_1, (SELECT scheduled_gaps.last_slot
FROM scheduled_gaps
WHERE scheduled_gaps.task_name = %(name)s::VARCHAR AND scheduled_gaps.task_instance = %(instance)s::VARCHAR ORDER BY
    scheduled_gaps.first_slot DESC
 LIMIT %(param_2)s::INTEGER) AS anon_2;

UPDATE scheduled_slots SET outcome=CASE WHEN (scheduled_slots.started IS NULL) THEN %(param_1)s::VARCHAR ELSE
    %(param_2)s::VARCHAR END, reason=%(reason)s::VARCHAR, finished=%(finished)s::TIMESTAMP WITH TIME ZONE WHERE
    scheduled_slots.task_name = %(task_name_1)s::VARCHAR AND scheduled_slots.task_instance =
    %(task_instance_1)s::VARCHAR AND scheduled_slots.slot >= %(slot_1)s::TIMESTAMP WITH TIME ZONE AND
    scheduled_slots.slot <= %(slot_2)s::TIMESTAMP WITH TIME ZONE AND scheduled_slots.finished IS NULL AND
    (scheduled_slots.token != %(token_1)s::BIGINT OR scheduled_slots.worker != %(worker_1)s::VARCHAR) AND
    scheduled_slots.origin IN (%(origin_1_1)s::VARCHAR, %(origin_1_2)s::VARCHAR);

INSERT INTO scheduled_gaps (task_name, task_instance, first_slot, last_slot, count, reason, created) VALUES
    (%(task_name)s::VARCHAR, %(task_instance)s::VARCHAR, %(first_slot)s::TIMESTAMP WITH TIME ZONE,
    %(last_slot)s::TIMESTAMP WITH TIME ZONE, %(count)s::BIGINT, %(reason)s::VARCHAR, %(created)s::TIMESTAMP WITH
    TIME ZONE) ON CONFLICT (task_name, task_instance, first_slot) DO UPDATE SET last_slot = excluded.last_slot,
    count = excluded.count, reason = excluded.reason, created = excluded.created WHERE excluded.last_slot >
    scheduled_gaps.last_slot;

UPDATE scheduled_tasks SET slot=%(slot)s::TIMESTAMP WITH TIME ZONE, watermark=%(watermark)s::TIMESTAMP WITH TIME
    ZONE, next_slot=%(next_slot)s::TIMESTAMP WITH TIME ZONE, origin=%(origin)s::VARCHAR,
    collapsed=%(collapsed)s::BIGINT, attempt=%(attempt)s::INTEGER, lost_count=%(lost_count)s::INTEGER,
    trying_since=%(trying_since)s::TIMESTAMP WITH TIME ZONE, catch_up_until=%(catch_up_until)s::TIMESTAMP WITH TIME
    ZONE WHERE scheduled_tasks.task_name = %(task_name_1)s::VARCHAR AND scheduled_tasks.task_instance =
    %(task_instance_1)s::VARCHAR AND scheduled_tasks.version = %(version_1)s::BIGINT AND scheduled_tasks.picked_by =
    %(picked_by_1)s::VARCHAR;

INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, reason, origin, attempts, collapsed, token,
    worker, started) VALUES (%(task_name)s::VARCHAR, %(task_instance)s::VARCHAR, %(slot)s::TIMESTAMP WITH TIME ZONE,
    %(outcome)s::VARCHAR, %(reason)s::VARCHAR, %(origin)s::VARCHAR, %(attempts)s::INTEGER, %(collapsed)s::BIGINT,
    %(token)s::BIGINT, %(worker)s::VARCHAR, %(started)s::TIMESTAMP WITH TIME ZONE) ON CONFLICT (task_name,
    task_instance, slot) DO UPDATE SET outcome = excluded.outcome, reason = excluded.reason, attempts =
    (scheduled_slots.attempts + %(attempts_1)s::INTEGER), collapsed = excluded.collapsed, token = excluded.token,
    worker = excluded.worker, started = excluded.started, started_before = scheduled_slots.started WHERE
    scheduled_slots.finished IS NULL AND scheduled_slots.outcome != %(outcome_1)s::VARCHAR AND (%(param_1)s OR
    scheduled_slots.attempts = %(attempts_2)s::INTEGER) RETURNING scheduled_slots.token;
