SELECT scheduled_tasks.version
FROM scheduled_tasks
WHERE scheduled_tasks.task_name = ? AND scheduled_tasks.task_instance = ? AND scheduled_tasks.version = ? AND
    scheduled_tasks.picked_by = ?;
