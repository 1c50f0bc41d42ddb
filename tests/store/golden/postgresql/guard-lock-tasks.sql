SELECT scheduled_tasks.version
FROM scheduled_tasks
WHERE scheduled_tasks.task_name = %(task_name_1)s::TEXT AND scheduled_tasks.task_instance =
    %(task_instance_1)s::TEXT AND scheduled_tasks.version = %(version_1)s::BIGINT AND scheduled_tasks.picked_by =
    %(picked_by_1)s::TEXT FOR KEY SHARE;
