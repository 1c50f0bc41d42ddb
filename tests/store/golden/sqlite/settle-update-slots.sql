UPDATE scheduled_slots SET outcome=?, reason=?, attempts=?, lost=(scheduled_slots.lost + ?),
    aborted=(scheduled_slots.aborted + ?), finished=?, error=? WHERE scheduled_slots.task_name = ? AND
    scheduled_slots.task_instance = ? AND scheduled_slots.slot = ? AND scheduled_slots.token = ? AND
    scheduled_slots.finished IS NULL;
