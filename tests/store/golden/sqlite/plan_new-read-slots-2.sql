SELECT (SELECT scheduled_slots.slot
FROM scheduled_slots
WHERE scheduled_slots.task_name = ? AND scheduled_slots.task_instance = ? AND scheduled_slots.origin IN (?, ?) AND
    (scheduled_slots.finished IS NOT NULL OR scheduled_slots.outcome != ?) ORDER BY scheduled_slots.slot DESC
 LIMIT ? OFFSET ?) AS anon_1, (SELECT scheduled_gaps.last_slot
FROM scheduled_gaps
WHERE scheduled_gaps.task_name = ? AND scheduled_gaps.task_instance = ? ORDER BY scheduled_gaps.first_slot DESC
 LIMIT ? OFFSET ?) AS anon_2;
