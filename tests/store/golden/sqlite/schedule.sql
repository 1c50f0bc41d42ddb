INSERT INTO scheduled_tasks (task_name, task_instance, task_data, execution_time, picked, version, priority, slot,
    first_version) VALUES (?, ?, ?, ?, 0, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING picked;
