SELECT scheduled_tasks.task_name, count(*) AS count_1
FROM scheduled_tasks
WHERE scheduled_tasks.picked = 1 AND scheduled_tasks.task_name IN (?) GROUP BY scheduled_tasks.task_name;

SELECT scheduled_starts.task_name, sum(scheduled_starts.count) AS sum_1
FROM scheduled_starts
WHERE scheduled_starts.task_name = ? AND scheduled_starts.at > ? AND scheduled_starts.at < ? GROUP BY
    scheduled_starts.task_name;

SELECT scheduled_tasks.task_name, scheduled_tasks.task_instance
FROM scheduled_tasks
WHERE scheduled_tasks.picked = 0 AND scheduled_tasks.state IS NULL AND scheduled_tasks.execution_time <= ? AND
    scheduled_tasks.task_name IN (?, ?) AND NOT (EXISTS (SELECT *
FROM scheduled_meta
WHERE scheduled_meta."key" = ?)) AND scheduled_tasks.lost_count > ? ORDER BY scheduled_tasks.execution_time,
    scheduled_tasks.task_name, scheduled_tasks.task_instance
 LIMIT ? OFFSET ?;

SELECT scheduled_tasks.task_name, scheduled_tasks.task_instance
FROM scheduled_tasks
WHERE scheduled_tasks.picked = 0 AND scheduled_tasks.state IS NULL AND scheduled_tasks.execution_time <= ? AND
    scheduled_tasks.task_name IN (?, ?) AND NOT (EXISTS (SELECT *
FROM scheduled_meta
WHERE scheduled_meta."key" = ?)) AND scheduled_tasks.lost_count = ? AND kind = 'task' AND
    ((scheduled_tasks.task_name NOT IN (?)) OR (scheduled_tasks.task_name, scheduled_tasks.task_instance) IN (SELECT
    found.task_name, found.task_instance
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

SELECT scheduled_tasks.task_name, count(*) AS count_1
FROM scheduled_tasks
WHERE scheduled_tasks.picked = 1 AND scheduled_tasks.task_name IN (?) GROUP BY scheduled_tasks.task_name;

SELECT scheduled_starts.task_name, sum(scheduled_starts.count) AS sum_1
FROM scheduled_starts
WHERE scheduled_starts.task_name = ? AND scheduled_starts.at > ? AND scheduled_starts.at < ? GROUP BY
    scheduled_starts.task_name;

DELETE FROM scheduled_starts WHERE scheduled_starts.task_name = ? AND NOT (scheduled_starts.task_name = ? AND
    scheduled_starts.at > ? AND scheduled_starts.at < ?);

INSERT INTO scheduled_starts (task_name, at, count) VALUES (?, ?, ?) ON CONFLICT (task_name, at) DO UPDATE SET count
    = (scheduled_starts.count + excluded.count) RETURNING task_name;
