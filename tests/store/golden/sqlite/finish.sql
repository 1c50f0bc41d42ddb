DELETE FROM scheduled_tasks WHERE scheduled_tasks.task_name = ? AND scheduled_tasks.task_instance = ? AND
    scheduled_tasks.version = ? AND scheduled_tasks.picked_by = ? AND scheduled_tasks.picked = 1 AND
    scheduled_tasks.state IS NULL AND scheduled_tasks.wanted_due IS NULL AND scheduled_tasks.cancel_requested IS
    NULL;
