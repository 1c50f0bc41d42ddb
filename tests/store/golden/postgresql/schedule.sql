SELECT statement_timestamp();

INSERT INTO scheduled_tasks (task_name, task_instance, task_data, execution_time, picked, version, priority, slot,
    first_version) VALUES (%(task_name)s::VARCHAR, %(task_instance)s::VARCHAR, %(task_data)s,
    %(execution_time)s::TIMESTAMP WITH TIME ZONE, %(picked)s, %(version)s::BIGINT, %(priority)s::SMALLINT,
    %(slot)s::TIMESTAMP WITH TIME ZONE, %(first_version)s::BIGINT) ON CONFLICT DO NOTHING RETURNING
    scheduled_tasks.version;
