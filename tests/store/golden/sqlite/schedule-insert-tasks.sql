INSERT INTO scheduled_tasks (task_name, task_instance, task_data, execution_time, picked, version, priority, kind,
    slot, created_version, state, parked_due, waits_for) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT
    DO NOTHING RETURNING task_name;
