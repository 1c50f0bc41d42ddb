INSERT INTO scheduled_tasks (task_name, task_instance, task_data, execution_time, picked, version, priority, slot,
    first_version) VALUES (%(task_name)s::VARCHAR, %(task_instance)s::VARCHAR, %(task_data)s, (statement_timestamp()
    + %(param_1)s), false, CAST(EXTRACT(epoch FROM statement_timestamp()) * %(param_2)s::INTEGER AS BIGINT),
    %(priority)s::SMALLINT, (statement_timestamp() + %(param_1)s), CAST(EXTRACT(epoch FROM statement_timestamp()) *
    %(param_2)s::INTEGER AS BIGINT)) ON CONFLICT DO NOTHING RETURNING scheduled_tasks.picked;
