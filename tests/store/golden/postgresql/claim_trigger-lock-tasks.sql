SELECT scheduled_tasks.schedule, scheduled_tasks.state, scheduled_tasks.task_data, scheduled_tasks.watermark
FROM scheduled_tasks
WHERE scheduled_tasks.task_name = %(task_name_1)s::TEXT AND scheduled_tasks.task_instance =
    %(task_instance_1)s::TEXT FOR UPDATE;
