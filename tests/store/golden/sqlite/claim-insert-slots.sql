INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, reason, origin, attempts, collapsed, token,
    worker, started) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (task_name, task_instance, slot) DO UPDATE
    SET outcome = excluded.outcome, reason = excluded.reason, attempts = (CASE WHEN (scheduled_slots.attempts > ?)
    THEN ? ELSE scheduled_slots.attempts END + ?), collapsed = excluded.collapsed, token = excluded.token, worker =
    excluded.worker, started = excluded.started, started_before = scheduled_slots.started WHERE
    scheduled_slots.finished IS NULL AND scheduled_slots.outcome != ? AND (? = 1 OR scheduled_slots.attempts = ?)
    RETURNING task_name;
