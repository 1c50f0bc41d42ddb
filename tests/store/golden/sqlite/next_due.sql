SELECT scheduled_tasks.execution_time
FROM scheduled_tasks
WHERE scheduled_tasks.picked = 0 AND scheduled_tasks.state IS NULL AND scheduled_tasks.task_name IN (?, ?) AND kind
    <> 'task' AND scheduled_tasks.lost_count = ? AND NOT (EXISTS (SELECT *
FROM scheduled_meta
WHERE scheduled_meta."key" = ?)) ORDER BY scheduled_tasks.execution_time
 LIMIT ? OFFSET ?;

SELECT scheduled_tasks.execution_time
FROM scheduled_tasks
WHERE scheduled_tasks.picked = 0 AND scheduled_tasks.state IS NULL AND scheduled_tasks.task_name IN (?) AND kind =
    'task' AND scheduled_tasks.lost_count = ? AND NOT (EXISTS (SELECT *
FROM scheduled_meta
WHERE scheduled_meta."key" = ?)) ORDER BY scheduled_tasks.execution_time
 LIMIT ? OFFSET ?;

SELECT scheduled_tasks.execution_time
FROM scheduled_tasks
WHERE scheduled_tasks.picked = 0 AND scheduled_tasks.state IS NULL AND scheduled_tasks.task_name IN (?, ?) AND
    scheduled_tasks.lost_count > ? AND NOT (EXISTS (SELECT *
FROM scheduled_meta
WHERE scheduled_meta."key" = ?)) ORDER BY scheduled_tasks.execution_time
 LIMIT ? OFFSET ?;
