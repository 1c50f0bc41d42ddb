INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, origin, attempts, token, worker, started,
    finished) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (task_name, task_instance, slot) DO UPDATE SET
    outcome = excluded.outcome, attempts = excluded.attempts, token = excluded.token, worker = excluded.worker,
    finished = excluded.finished RETURNING task_name;
