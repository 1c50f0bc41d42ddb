SELECT scheduled_meta.value
FROM scheduled_meta
WHERE scheduled_meta."key" = ?;

UPDATE scheduled_meta SET value=scheduled_meta.value WHERE 0 = 1;

SELECT scheduled_slots.token
FROM scheduled_slots
WHERE scheduled_slots.task_name = ? AND scheduled_slots.task_instance = ? AND scheduled_slots.slot = ? AND
    scheduled_slots.token = ? AND scheduled_slots.worker = ? AND scheduled_slots.outcome = ?;

UPDATE scheduled_slots SET outcome=?, finished=? WHERE scheduled_slots.task_name = ? AND
    scheduled_slots.task_instance = ? AND scheduled_slots.slot = ? AND scheduled_slots.token = ? AND
    scheduled_slots.worker = ? AND scheduled_slots.outcome = ?;

SELECT scheduled_meta.value
FROM scheduled_meta
WHERE scheduled_meta."key" = ?;

UPDATE scheduled_meta SET value=scheduled_meta.value WHERE 0 = 1;

SELECT scheduled_tasks.version
FROM scheduled_tasks
WHERE scheduled_tasks.task_name = ? AND scheduled_tasks.task_instance = ? AND scheduled_tasks.version = ? AND
    scheduled_tasks.picked_by = ?;

INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, origin, attempts, token, worker, started,
    finished) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (task_name, task_instance, slot) DO UPDATE SET
    outcome = excluded.outcome, attempts = excluded.attempts, token = excluded.token, worker = excluded.worker,
    finished = excluded.finished RETURNING task_name;
