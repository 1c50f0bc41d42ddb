SELECT scheduled_tasks.task_name, scheduled_tasks.schedule, scheduled_tasks.slot, scheduled_tasks.priority,
    scheduled_tasks.plan, EXISTS (SELECT scheduled_slots.slot
FROM scheduled_slots
WHERE scheduled_slots.task_name = scheduled_tasks.task_name AND scheduled_slots.task_instance =
    scheduled_tasks.task_instance AND scheduled_slots.finished IS NULL AND NOT (EXISTS (SELECT *
FROM scheduled_tasks AS standing
WHERE standing.task_name = scheduled_slots.task_name AND standing.slot = scheduled_slots.slot AND
    (standing.task_instance = scheduled_slots.task_instance OR standing.plan_instance =
    scheduled_slots.task_instance))) AND scheduled_slots.slot >= coalesce((SELECT newest.slot
FROM scheduled_slots AS newest
WHERE newest.task_name = scheduled_tasks.task_name AND newest.task_instance = scheduled_tasks.task_instance ORDER BY
    newest.slot DESC
 LIMIT %(param_1)s::INTEGER OFFSET %(param_2)s::INTEGER), %(param_3)s::TIMESTAMP WITH TIME ZONE)) AS orphaned
FROM scheduled_tasks
WHERE scheduled_tasks.task_name IN (%(task_name_1_1)s::TEXT, %(task_name_1_2)s::TEXT, %(task_name_1_3)s::TEXT,
    %(task_name_1_4)s::TEXT, %(task_name_1_5)s::TEXT) AND scheduled_tasks.task_instance = %(task_instance_1)s::TEXT
    ORDER BY scheduled_tasks.task_name COLLATE "C", scheduled_tasks.task_instance COLLATE "C" FOR UPDATE OF
    scheduled_tasks;
