UPDATE scheduled_tasks SET "plan"=json_patch(scheduled_tasks."plan", ?) WHERE scheduled_tasks.task_name IN (?, ?, ?,
    ?, ?) AND scheduled_tasks.task_instance = ?;
