UPDATE scheduled_slots SET outcome=CASE WHEN (scheduled_slots.started IS NULL) THEN ? ELSE ? END, reason=?,
    finished=? WHERE scheduled_slots.task_name = ? AND scheduled_slots.task_instance = ? AND scheduled_slots.slot >=
    ? AND scheduled_slots.slot <= ? AND scheduled_slots.finished IS NULL AND (scheduled_slots.token != ? OR
    scheduled_slots.worker != ?) AND scheduled_slots.origin IN (?, ?) RETURNING slot;
