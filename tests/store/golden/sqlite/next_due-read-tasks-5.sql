SELECT min(scheduled_tasks.execution_time) AS min_1
FROM scheduled_tasks
WHERE scheduled_tasks.picked = 0 AND scheduled_tasks.state IS NULL AND NOT (EXISTS (SELECT *
FROM scheduled_meta
WHERE scheduled_meta."key" = ?)) AND (scheduled_tasks.task_name NOT IN (SELECT scheduled_pauses.task_name
FROM scheduled_pauses
WHERE scheduled_pauses.scope = ? AND (scheduled_pauses.until IS NULL OR scheduled_pauses.until > ?))) AND
    scheduled_tasks.task_name IN (SELECT anon_1.value
FROM json_each(?) AS anon_1) AND kind = 'task' AND scheduled_tasks.lost_count = ?;
