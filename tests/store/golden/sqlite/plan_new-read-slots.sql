SELECT scheduled_tasks.task_name, scheduled_tasks.schedule, scheduled_tasks.slot, scheduled_tasks.priority,
    scheduled_tasks."plan", EXISTS (SELECT newest.slot
FROM (SELECT scheduled_slots.task_name AS task_name, scheduled_slots.task_instance AS task_instance,
    scheduled_slots.slot AS slot, scheduled_slots.finished AS finished
FROM scheduled_slots
WHERE scheduled_slots.task_name = scheduled_tasks.task_name AND scheduled_slots.task_instance =
    scheduled_tasks.task_instance ORDER BY scheduled_slots.slot DESC
 LIMIT ? OFFSET ?) AS newest
WHERE newest.finished IS NULL AND NOT (EXISTS (SELECT *
FROM scheduled_tasks AS standing
WHERE standing.task_name = newest.task_name AND standing.slot = newest.slot AND (standing.task_instance =
    newest.task_instance OR standing.plan_instance = newest.task_instance)))) AS orphaned
FROM scheduled_tasks
WHERE scheduled_tasks.task_name IN (?) AND scheduled_tasks.task_instance = ? ORDER BY scheduled_tasks.task_name,
    scheduled_tasks.task_instance;
