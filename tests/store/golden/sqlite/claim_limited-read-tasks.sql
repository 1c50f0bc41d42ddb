SELECT scheduled_tasks.task_name, count(*) AS count_1
FROM scheduled_tasks
WHERE scheduled_tasks.picked = 1 AND scheduled_tasks.task_name IN (?) GROUP BY scheduled_tasks.task_name;
