UPDATE scheduled_tasks SET priority=?, next_slot=?, schedule=?, "plan"=? WHERE scheduled_tasks.task_name = ? AND
    scheduled_tasks.task_instance = ?;
