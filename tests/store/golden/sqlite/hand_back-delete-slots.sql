DELETE FROM scheduled_slots WHERE scheduled_slots.task_name = ? AND scheduled_slots.task_instance = ? AND
    scheduled_slots.slot = ? AND scheduled_slots.token = ? AND scheduled_slots.finished IS NULL AND
    scheduled_slots.attempts <= ? AND scheduled_slots.lost = ? AND scheduled_slots.aborted = ?;
