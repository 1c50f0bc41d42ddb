SELECT ? AS anon_1
FROM scheduled_slots
WHERE scheduled_slots.task_name = ? AND scheduled_slots.task_instance = ? AND scheduled_slots.slot = ? UNION ALL
    SELECT ? AS anon_1
FROM scheduled_tasks
WHERE scheduled_tasks.task_name = ? AND (scheduled_tasks.task_instance = ? OR scheduled_tasks.plan_instance = ?) AND
    scheduled_tasks.slot = ?;
