INSERT INTO scheduled_gaps (task_name, task_instance, first_slot, last_slot, count, reason, created) VALUES (?, ?,
    ?, ?, ?, ?, ?) ON CONFLICT (task_name, task_instance, first_slot) DO UPDATE SET last_slot = excluded.last_slot,
    count = excluded.count, reason = excluded.reason, created = excluded.created WHERE excluded.last_slot >
    scheduled_gaps.last_slot RETURNING task_name;
