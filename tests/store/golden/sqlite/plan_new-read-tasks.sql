SELECT scheduled_tasks.task_name
FROM scheduled_tasks
WHERE scheduled_tasks.task_name IN (SELECT anon_1.value
FROM json_each(?) AS anon_1) AND scheduled_tasks.task_instance = ? AND scheduled_tasks.kind != 'plan';
