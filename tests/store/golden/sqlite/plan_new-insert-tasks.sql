INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, picked, version, priority, kind, slot,
    watermark, next_slot, schedule, "plan", created_version) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON
    CONFLICT DO NOTHING RETURNING task_name;
