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

DELETE FROM scheduled_slots WHERE scheduled_slots.task_name = %(task_name_1)s::TEXT AND
    scheduled_slots.task_instance = %(task_instance_1)s::TEXT AND scheduled_slots.slot = %(slot_1)s::TIMESTAMP WITH
    TIME ZONE AND scheduled_slots.token = %(token_1)s::BIGINT AND scheduled_slots.finished IS NULL AND
    scheduled_slots.attempts <= %(attempts_1)s::INTEGER AND scheduled_slots.lost = %(lost_1)s::INTEGER AND
    scheduled_slots.aborted = %(aborted_1)s::INTEGER;
