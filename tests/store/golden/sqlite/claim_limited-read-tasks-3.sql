SELECT scheduled_tasks.task_name AS c_task_name, scheduled_tasks.task_instance AS c_task_instance,
    scheduled_tasks.execution_time AS c_execution_time, scheduled_tasks.version AS c_version, scheduled_tasks.picked
    AS c_picked, NULL AS c_picked_by, CASE WHEN (length(scheduled_tasks.task_data) <= ?) THEN
    scheduled_tasks.task_data END AS c_task_data, scheduled_tasks.last_success AS c_last_success,
    scheduled_tasks.last_failure AS c_last_failure, scheduled_tasks.consecutive_failures AS c_consecutive_failures,
    NULL AS c_last_heartbeat, scheduled_tasks.priority AS c_priority, scheduled_tasks.kind AS c_kind,
    scheduled_tasks.slot AS c_slot, scheduled_tasks.watermark AS c_watermark, scheduled_tasks.next_slot AS
    c_next_slot, scheduled_tasks.schedule AS c_schedule, scheduled_tasks.plan_instance AS c_plan_instance,
    scheduled_tasks.origin AS c_origin, scheduled_tasks.collapsed AS c_collapsed, scheduled_tasks.created_version AS
    c_created_version, scheduled_tasks.attempt AS c_attempt, scheduled_tasks.lost_count AS c_lost_count, NULL AS
    c_lease, scheduled_tasks.state AS c_state, scheduled_tasks.cancel_requested AS c_cancel_requested,
    scheduled_tasks.control AS c_control, scheduled_tasks.parked_due AS c_parked_due, scheduled_tasks.wanted_due AS
    c_wanted_due, scheduled_tasks.unheld_since AS c_unheld_since, scheduled_tasks.marked AS c_marked,
    scheduled_tasks.pending AS c_pending, scheduled_tasks.version AS c_before, length(scheduled_tasks.task_data) AS
    c_size
FROM scheduled_tasks
WHERE scheduled_tasks.picked = 0 AND scheduled_tasks.state IS NULL AND scheduled_tasks.execution_time <= ? AND
    scheduled_tasks.task_name IN (SELECT anon_1.value
FROM json_each(?) AS anon_1) AND NOT (EXISTS (SELECT *
FROM scheduled_meta
WHERE scheduled_meta."key" = ?)) AND (scheduled_tasks.task_name NOT IN (SELECT scheduled_pauses.task_name
FROM scheduled_pauses
WHERE scheduled_pauses.scope = ? AND (scheduled_pauses.until IS NULL OR scheduled_pauses.until > ?))) AND
    scheduled_tasks.lost_count = ? AND kind = 'task' AND ((scheduled_tasks.task_name NOT IN (?)) OR
    (scheduled_tasks.task_name, scheduled_tasks.task_instance) IN (SELECT found.task_name, found.task_instance
FROM (SELECT scheduled_tasks.task_name AS task_name, scheduled_tasks.task_instance AS task_instance, row_number()
    OVER (PARTITION BY scheduled_tasks.task_name ORDER BY -coalesce(priority, 50), scheduled_tasks.execution_time)
    AS place
FROM scheduled_tasks
WHERE scheduled_tasks.picked = 0 AND scheduled_tasks.state IS NULL AND scheduled_tasks.execution_time <= ? AND
    scheduled_tasks.task_name IN (?) AND kind = 'task' AND scheduled_tasks.lost_count = ?) AS found
WHERE found.place <= CASE found.task_name WHEN ? THEN ? END)) ORDER BY -coalesce(priority, 50), CASE
    scheduled_tasks.task_name WHEN ? THEN ? WHEN ? THEN ? END, scheduled_tasks.execution_time,
    scheduled_tasks.task_name, scheduled_tasks.task_instance
 LIMIT ? OFFSET ?;
