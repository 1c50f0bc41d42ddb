INSERT INTO scheduled_tasks (task_name, task_instance, task_data, execution_time, picked, version, priority, kind,
    slot, created_version) VALUES (?, ?, ?, (? + ?), 0, CAST(? AS BIGINT), ?, 'task', (? + ?), CAST(? AS BIGINT)) ON
    CONFLICT DO NOTHING RETURNING picked;
