SELECT DISTINCT scheduled_tasks.task_name
FROM scheduled_tasks
WHERE scheduled_tasks.picked = 0 AND scheduled_tasks.state IS NULL AND scheduled_tasks.execution_time <= ? AND
    scheduled_tasks.task_name IN (?) AND NOT (EXISTS (SELECT *
FROM scheduled_meta
WHERE scheduled_meta."key" = ?));
