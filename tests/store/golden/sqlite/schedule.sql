INSERT INTO scheduled_tasks (task_name, task_instance, task_data, execution_time, picked, version, priority, kind,
    slot, created_version) VALUES (?, ?, ?, ?, 0, ?, ?, 'task', ?, ?) ON CONFLICT DO NOTHING RETURNING picked;
