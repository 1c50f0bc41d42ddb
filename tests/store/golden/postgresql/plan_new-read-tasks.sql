SELECT scheduled_tasks.task_name
FROM scheduled_tasks
WHERE scheduled_tasks.task_name = ANY (CAST(%(param_1)s::TEXT[] AS TEXT[])) AND scheduled_tasks.task_instance =
    %(task_instance_1)s::TEXT AND scheduled_tasks.kind != 'plan';
