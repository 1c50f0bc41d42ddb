DELETE FROM scheduled_slots WHERE scheduled_slots.task_name = %(task_name_1)s::TEXT AND
    scheduled_slots.task_instance = %(task_instance_1)s::TEXT AND scheduled_slots.slot = %(slot_1)s::TIMESTAMP WITH
    TIME ZONE AND scheduled_slots.token = %(token_1)s::BIGINT AND scheduled_slots.finished IS NULL AND
    scheduled_slots.attempts <= %(attempts_1)s::INTEGER AND scheduled_slots.lost = %(lost_1)s::INTEGER AND
    scheduled_slots.aborted = %(aborted_1)s::INTEGER;
