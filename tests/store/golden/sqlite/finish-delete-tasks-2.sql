DELETE FROM scheduled_tasks WHERE scheduled_tasks.task_name = ? AND scheduled_tasks.task_instance IN (?);
