SELECT scheduled_tasks.task_name, scheduled_tasks.task_instance, scheduled_tasks.version
FROM scheduled_tasks
WHERE scheduled_tasks.picked_by = ? AND scheduled_tasks.picked = 1 AND (scheduled_tasks.task_name,
    scheduled_tasks.task_instance, scheduled_tasks.version) IN (VALUES (?, ?, ?));
