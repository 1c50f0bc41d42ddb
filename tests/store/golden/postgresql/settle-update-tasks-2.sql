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
