INSERT INTO scheduled_tasks (task_name, task_instance, task_data, execution_time, picked, version, priority, kind,
    slot, created_version) VALUES (?, ?, ?, (? + ?), 0, CAST(? AS BIGINT), ?, 'task', (? + ?), CAST(? AS BIGINT)) ON
    CONFLICT (task_name, task_instance) DO UPDATE SET task_data = excluded.task_data, execution_time = CASE WHEN
    (scheduled_tasks.state = ? OR excluded.state = ?) THEN ? ELSE excluded.execution_time END, consecutive_failures
    = ?, version = CASE WHEN (scheduled_tasks.version >= excluded.version) THEN scheduled_tasks.version + ? ELSE
    excluded.version END, priority = excluded.priority, slot = excluded.slot, created_version = CASE WHEN
    (scheduled_tasks.version >= excluded.version) THEN scheduled_tasks.version + ? ELSE excluded.version END,
    attempt = ?, lost_count = ?, state = CASE WHEN (excluded.state = ?) THEN ? WHEN (scheduled_tasks.state = ? OR
    excluded.state = ?) THEN ? END, parked_due = CASE WHEN (scheduled_tasks.state = ? OR excluded.state = ?) THEN
    coalesce(excluded.parked_due, excluded.execution_time) END, waits_for = excluded.waits_for, last_error = ?,
    pending = ? WHERE scheduled_tasks.picked = 0 AND scheduled_tasks.kind = 'task' RETURNING picked;

INSERT INTO scheduled_tasks (task_name, task_instance, task_data, execution_time, picked, version, priority, kind,
    slot, created_version) VALUES (?, ?, ?, (? + ?), 0, CAST(? AS BIGINT), ?, 'task', (? + ?), CAST(? AS BIGINT)) ON
    CONFLICT (task_name, task_instance) DO UPDATE SET task_data = excluded.task_data, execution_time = CASE WHEN
    (scheduled_tasks.state = ? OR excluded.state = ?) THEN ? ELSE excluded.execution_time END, consecutive_failures
    = ?, version = CASE WHEN (scheduled_tasks.version >= excluded.version) THEN scheduled_tasks.version + ? ELSE
    excluded.version END, priority = excluded.priority, slot = excluded.slot, created_version = CASE WHEN
    (scheduled_tasks.version >= excluded.version) THEN scheduled_tasks.version + ? ELSE excluded.version END,
    attempt = ?, lost_count = ?, state = CASE WHEN (excluded.state = ?) THEN ? WHEN (scheduled_tasks.state = ? OR
    excluded.state = ?) THEN ? END, parked_due = CASE WHEN (scheduled_tasks.state = ? OR excluded.state = ?) THEN
    coalesce(excluded.parked_due, excluded.execution_time) END, waits_for = excluded.waits_for, last_error = ?,
    pending = ? WHERE scheduled_tasks.picked = 0 AND scheduled_tasks.kind = 'task' RETURNING picked;
