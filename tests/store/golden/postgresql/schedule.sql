INSERT INTO scheduled_tasks (task_name, task_instance, task_data, execution_time, picked, version, priority, kind,
    slot, created_version) VALUES (%(name)s::VARCHAR, %(instance)s::VARCHAR, %(data)s, (statement_timestamp() +
    %(due)s), false, CAST(EXTRACT(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), %(rank)s::SMALLINT,
    'task', (statement_timestamp() + %(due)s), CAST(EXTRACT(epoch FROM statement_timestamp()) * 1000000 AS BIGINT))
    ON CONFLICT DO NOTHING RETURNING scheduled_tasks.picked;

SELECT pg_current_xact_id()::text;
