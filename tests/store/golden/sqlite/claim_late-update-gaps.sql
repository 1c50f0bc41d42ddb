UPDATE scheduled_gaps SET last_slot=?, count=(scheduled_gaps.count + ?), created=? WHERE scheduled_gaps.task_name =
    ? AND scheduled_gaps.task_instance = ? AND scheduled_gaps.last_slot = ? AND scheduled_gaps.reason = ? AND
    scheduled_gaps.first_slot < ? AND NOT (EXISTS (SELECT scheduled_slots.slot
FROM scheduled_slots
WHERE scheduled_slots.task_name = ? AND scheduled_slots.task_instance = ? AND scheduled_slots.slot > ? AND
    scheduled_slots.slot < ?));
