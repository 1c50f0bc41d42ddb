INSERT INTO scheduled_attempts (task_name, task_instance, slot, token, number, worker, claimed, started, ended,
    outcome, reason, error) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING task_name;
