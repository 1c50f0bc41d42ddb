SELECT scheduled_tasks.task_name, pg_catalog.count(*) AS count_1
FROM scheduled_tasks
WHERE scheduled_tasks.picked AND scheduled_tasks.task_name IN (%(task_name_1_1)s::TEXT) GROUP BY
    scheduled_tasks.task_name;
