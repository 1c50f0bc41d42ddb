SELECT %(param_1)s::INTEGER AS anon_1
FROM scheduled_slots
WHERE scheduled_slots.task_name = %(task_name_1)s::TEXT AND scheduled_slots.task_instance =
    %(task_instance_1)s::TEXT AND scheduled_slots.slot = %(slot_1)s::TIMESTAMP WITH TIME ZONE UNION ALL SELECT
    %(param_1)s::INTEGER AS anon_1
FROM scheduled_tasks
WHERE scheduled_tasks.task_name = %(task_name_2)s::TEXT AND (scheduled_tasks.task_instance =
    %(task_instance_2)s::TEXT OR scheduled_tasks.plan_instance = %(plan_instance_1)s::TEXT) AND scheduled_tasks.slot
    = %(slot_2)s::TIMESTAMP WITH TIME ZONE;
