SELECT scheduled_slots.token
FROM scheduled_slots
WHERE scheduled_slots.task_name = ? AND scheduled_slots.task_instance = ? AND scheduled_slots.slot = ? AND
    scheduled_slots.token = ? AND scheduled_slots.worker = ? AND scheduled_slots.outcome = ?;
