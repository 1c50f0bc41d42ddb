SELECT scheduled_tasks.task_name
FROM scheduled_tasks
WHERE scheduled_tasks.task_name IN (SELECT anon_1.value
FROM json_each(?) AS anon_1) AND scheduled_tasks.task_instance = ? AND scheduled_tasks.kind != 'plan';

SELECT scheduled_tasks.task_name, scheduled_tasks.schedule, scheduled_tasks.slot, scheduled_tasks.priority,
    scheduled_tasks."plan", EXISTS (SELECT newest.slot
FROM (SELECT scheduled_slots.task_name AS task_name, scheduled_slots.task_instance AS task_instance,
    scheduled_slots.slot AS slot, scheduled_slots.finished AS finished
FROM scheduled_slots
WHERE scheduled_slots.task_name = scheduled_tasks.task_name AND scheduled_slots.task_instance =
    scheduled_tasks.task_instance ORDER BY scheduled_slots.slot DESC
 LIMIT ? OFFSET ?) AS newest
WHERE newest.finished IS NULL AND NOT (EXISTS (SELECT *
FROM scheduled_tasks AS standing
WHERE standing.task_name = newest.task_name AND standing.slot = newest.slot AND (standing.task_instance =
    newest.task_instance OR standing.plan_instance = newest.task_instance)))) AS orphaned
FROM scheduled_tasks
WHERE scheduled_tasks.task_name IN (?) AND scheduled_tasks.task_instance = ? ORDER BY scheduled_tasks.task_name,
    scheduled_tasks.task_instance;

SELECT scheduled_tasks."plan", scheduled_tasks.task_name, scheduled_tasks.task_instance,
    scheduled_tasks.execution_time, scheduled_tasks.version, scheduled_tasks.picked, scheduled_tasks.picked_by,
    scheduled_tasks.task_data, scheduled_tasks.last_success, scheduled_tasks.last_failure,
    scheduled_tasks.consecutive_failures, scheduled_tasks.last_heartbeat, scheduled_tasks.priority,
    scheduled_tasks.kind, scheduled_tasks.slot, scheduled_tasks.watermark, scheduled_tasks.next_slot,
    scheduled_tasks.schedule, scheduled_tasks.plan_instance, scheduled_tasks.origin, scheduled_tasks.collapsed,
    scheduled_tasks.created_version, scheduled_tasks.attempt, scheduled_tasks.lost_count, scheduled_tasks.lease,
    scheduled_tasks.state, scheduled_tasks.cancel_requested, scheduled_tasks.control, scheduled_tasks.parked_due,
    scheduled_tasks.wanted_due, scheduled_tasks.unheld_since, scheduled_tasks.marked, scheduled_tasks.pending
FROM scheduled_tasks
WHERE scheduled_tasks.task_name = ? AND scheduled_tasks.task_instance = ?;

UPDATE scheduled_slots SET outcome=CASE WHEN (scheduled_slots.started IS NOT NULL) THEN ? ELSE ? END, reason=?,
    lost=(scheduled_slots.lost + CASE WHEN (scheduled_slots.started IS NOT NULL) THEN ? ELSE ? END), finished=?
    WHERE scheduled_slots.task_name = ? AND scheduled_slots.task_instance = ? AND scheduled_slots.slot IN (SELECT
    newest.slot
FROM (SELECT scheduled_slots.slot AS slot
FROM scheduled_slots
WHERE scheduled_slots.task_name = ? AND scheduled_slots.task_instance = ? ORDER BY scheduled_slots.slot DESC
 LIMIT ? OFFSET ?) AS newest) AND scheduled_slots.finished IS NULL AND NOT (EXISTS (SELECT *
FROM scheduled_tasks AS standing
WHERE standing.task_name = ? AND standing.slot = scheduled_slots.slot AND (standing.task_instance = ? OR
    standing.plan_instance = ?)));

UPDATE scheduled_tasks SET priority=?, next_slot=?, schedule=?, "plan"=? WHERE scheduled_tasks.task_name = ? AND
    scheduled_tasks.task_instance = ?;

INSERT INTO scheduled_controls (at, author, command, task_name, slot, arguments, note) VALUES (?, ?, ?, ?, ?, ?, ?);
