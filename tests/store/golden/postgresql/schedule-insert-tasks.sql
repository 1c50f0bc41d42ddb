INSERT INTO scheduled_tasks (task_name, task_instance, task_data, execution_time, picked, version, priority, kind,
    slot, created_version) VALUES (%(name)s::TEXT, %(instance)s::TEXT, %(data)s, (pg_catalog.statement_timestamp() +
    %(due)s), false, CAST(EXTRACT(epoch FROM pg_catalog.statement_timestamp()) * 1000000.0 AS BIGINT),
    %(rank)s::SMALLINT, 'task', (pg_catalog.statement_timestamp() + %(due)s), CAST(EXTRACT(epoch FROM
    pg_catalog.statement_timestamp()) * 1000000.0 AS BIGINT)) ON CONFLICT DO NOTHING RETURNING
    scheduled_tasks.picked;
