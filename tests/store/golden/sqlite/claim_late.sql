SELECT scheduled_tasks.task_name, scheduled_tasks.task_instance
FROM scheduled_tasks
WHERE scheduled_tasks.picked = 0 AND scheduled_tasks.state IS NULL AND scheduled_tasks.execution_time <= ? AND
    scheduled_tasks.task_name IN (?) AND NOT (EXISTS (SELECT *
FROM scheduled_meta
WHERE scheduled_meta."key" = ?)) AND scheduled_tasks.lost_count > ? ORDER BY scheduled_tasks.execution_time,
    scheduled_tasks.task_name, scheduled_tasks.task_instance
 LIMIT ? OFFSET ?;

SELECT scheduled_tasks.task_name, scheduled_tasks.task_instance
FROM scheduled_tasks
WHERE scheduled_tasks.picked = 0 AND scheduled_tasks.state IS NULL AND scheduled_tasks.execution_time <= ? AND
    scheduled_tasks.task_name IN (?) AND NOT (EXISTS (SELECT *
FROM scheduled_meta
WHERE scheduled_meta."key" = ?)) AND scheduled_tasks.lost_count = ? AND kind <> 'task' ORDER BY -coalesce(priority,
    50), scheduled_tasks.execution_time, scheduled_tasks.task_name, scheduled_tasks.task_instance
 LIMIT ? OFFSET ?;

UPDATE scheduled_tasks SET picked=?, picked_by=?, last_heartbeat=?, version=CASE WHEN (scheduled_tasks.version < ?)
    THEN ? ELSE CASE WHEN (scheduled_tasks.version > ?) THEN ? ELSE scheduled_tasks.version END + ? END,
    watermark=CASE WHEN (scheduled_tasks.kind = 'plan' AND (scheduled_tasks.watermark IS NULL OR
    scheduled_tasks.watermark < scheduled_tasks.slot)) THEN scheduled_tasks.slot ELSE scheduled_tasks.watermark END,
    attempt=(CASE WHEN (scheduled_tasks.attempt > ?) THEN ? ELSE scheduled_tasks.attempt END + ?), lease=? WHERE
    scheduled_tasks.task_name = ? AND scheduled_tasks.task_instance = ? AND scheduled_tasks.picked = 0 AND
    scheduled_tasks.state IS NULL AND scheduled_tasks.execution_time <= ? RETURNING task_name, task_instance,
    execution_time, version, picked, picked_by, CASE WHEN length(task_data) <= 1048640 THEN task_data END,
    last_success, last_failure, consecutive_failures, last_heartbeat, priority, kind, slot, watermark, next_slot,
    schedule, plan_instance, origin, collapsed, created_version, attempt, lost_count, lease, state,
    cancel_requested, control, parked_due, wanted_due, unheld_since, marked, pending, CASE WHEN length(task_data) >
    1048640
         THEN 'payload too large: ' || length(task_data) || ' bytes, at most 1048576 are allowed'
         WHEN version > 4611686018427387901 THEN 'its version cannot rise further; give it a lower one'
         WHEN attempt > 2147483646 THEN 'its attempts cannot be counted; set attempt to 0' END;

SELECT (SELECT scheduled_slots.slot
FROM scheduled_slots
WHERE scheduled_slots.task_name = ? AND scheduled_slots.task_instance = ? AND scheduled_slots.origin IN (?, ?) AND
    scheduled_slots.finished IS NOT NULL ORDER BY scheduled_slots.slot DESC
 LIMIT ? OFFSET ?) AS anon_1, (SELECT scheduled_gaps.last_slot
FROM scheduled_gaps
WHERE scheduled_gaps.task_name = ? AND scheduled_gaps.task_instance = ? ORDER BY scheduled_gaps.first_slot DESC
 LIMIT ? OFFSET ?) AS anon_2;

UPDATE scheduled_slots SET outcome=CASE WHEN (scheduled_slots.started IS NULL) THEN ? ELSE ? END, reason=?,
    finished=? WHERE scheduled_slots.task_name = ? AND scheduled_slots.task_instance = ? AND scheduled_slots.slot >=
    ? AND scheduled_slots.slot <= ? AND scheduled_slots.finished IS NULL AND (scheduled_slots.token != ? OR
    scheduled_slots.worker != ?) AND scheduled_slots.origin IN (?, ?) RETURNING slot;

UPDATE scheduled_gaps SET last_slot=?, count=(scheduled_gaps.count + ?), created=? WHERE scheduled_gaps.task_name =
    ? AND scheduled_gaps.task_instance = ? AND scheduled_gaps.last_slot = ? AND scheduled_gaps.reason = ? AND
    scheduled_gaps.first_slot < ? AND NOT (EXISTS (SELECT scheduled_slots.slot
FROM scheduled_slots
WHERE scheduled_slots.task_name = ? AND scheduled_slots.task_instance = ? AND scheduled_slots.slot > ? AND
    scheduled_slots.slot < ?));

INSERT INTO scheduled_gaps (task_name, task_instance, first_slot, last_slot, count, reason, created) VALUES (?, ?,
    ?, ?, ?, ?, ?) ON CONFLICT (task_name, task_instance, first_slot) DO UPDATE SET last_slot = excluded.last_slot,
    count = excluded.count, reason = excluded.reason, created = excluded.created WHERE excluded.last_slot >
    scheduled_gaps.last_slot RETURNING task_name;

UPDATE scheduled_tasks SET slot=?, watermark=?, next_slot=?, origin=?, collapsed=?, attempt=?, lost_count=?,
    pending=? WHERE scheduled_tasks.task_name = ? AND scheduled_tasks.task_instance = ? AND scheduled_tasks.version
    = ? AND scheduled_tasks.picked_by = ?;

INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, reason, origin, attempts, collapsed, token,
    worker, started) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (task_name, task_instance, slot) DO UPDATE
    SET outcome = excluded.outcome, reason = excluded.reason, attempts = (CASE WHEN (scheduled_slots.attempts > ?)
    THEN ? ELSE scheduled_slots.attempts END + ?), collapsed = excluded.collapsed, token = excluded.token, worker =
    excluded.worker, started = excluded.started, started_before = scheduled_slots.started WHERE
    scheduled_slots.finished IS NULL AND scheduled_slots.outcome != ? AND (? = 1 OR scheduled_slots.attempts = ?)
    RETURNING token;
