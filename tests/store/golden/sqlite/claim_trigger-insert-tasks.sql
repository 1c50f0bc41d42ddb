INSERT INTO scheduled_tasks (task_name, task_instance, task_data, execution_time, picked, version, kind, slot,
    schedule, plan_instance, origin, created_version, state) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON
    CONFLICT DO NOTHING RETURNING task_name;
