DELETE FROM scheduled_tasks WHERE (scheduled_tasks.task_name, scheduled_tasks.task_instance) IN (VALUES (?, ?));
