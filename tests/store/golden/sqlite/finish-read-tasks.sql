SELECT scheduled_tasks.task_name, scheduled_tasks.task_instance
FROM scheduled_tasks, (SELECT json_extract(anon_1.value, ?) AS task_name, json_extract(anon_1.value, ?) AS
    task_instance, json_extract(anon_1.value, ?) AS version, json_extract(anon_1.value, ?) AS picked_by
FROM json_each(?) AS anon_1) AS given_rows
WHERE scheduled_tasks.task_name = given_rows.task_name AND scheduled_tasks.task_instance = given_rows.task_instance
    AND scheduled_tasks.version = given_rows.version AND scheduled_tasks.picked_by = given_rows.picked_by AND
    scheduled_tasks.picked = 1 AND scheduled_tasks.state IS NULL AND scheduled_tasks.wanted_due IS NULL AND
    scheduled_tasks.cancel_requested IS NULL ORDER BY scheduled_tasks.task_name, scheduled_tasks.task_instance;
