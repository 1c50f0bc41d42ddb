UPDATE scheduled_tasks SET marked=? WHERE scheduled_tasks.marked IS NULL AND scheduled_tasks.task_name = ? AND
    scheduled_tasks.task_instance = ? AND scheduled_tasks.version = ? AND scheduled_tasks.picked_by = ? AND
    scheduled_tasks.picked = 1;
