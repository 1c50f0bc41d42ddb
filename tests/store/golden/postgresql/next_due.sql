SELECT scheduled_tasks.execution_time
FROM scheduled_tasks
WHERE NOT scheduled_tasks.picked AND scheduled_tasks.state IS NULL AND scheduled_tasks.task_name IN
    (%(task_name_1_1)s::VARCHAR, %(task_name_1_2)s::VARCHAR) AND NOT (EXISTS (SELECT *
FROM scheduled_meta
WHERE scheduled_meta.key = %(key_1)s::VARCHAR)) ORDER BY scheduled_tasks.execution_time
 LIMIT %(param_1)s::INTEGER;

SELECT statement_timestamp();
