SELECT scheduled_tasks.task_name, scheduled_tasks.task_instance, scheduled_tasks.version
FROM scheduled_tasks
WHERE scheduled_tasks.picked_by = %(picked_by_1)s::TEXT AND scheduled_tasks.picked AND (scheduled_tasks.task_name,
    scheduled_tasks.task_instance, scheduled_tasks.version) IN ((%(param_1_1_1)s, %(param_1_1_2)s, %(param_1_1_3)s));
