INSERT INTO scheduled_tasks (task_name, task_instance, task_data, execution_time, picked, version, kind, slot,
    schedule, plan_instance, origin, created_version, state) VALUES (%(task_name)s::TEXT, %(task_instance)s::TEXT,
    %(task_data)s, %(execution_time)s::TIMESTAMP WITH TIME ZONE, %(picked)s, %(version)s::BIGINT, %(kind)s::TEXT,
    %(slot)s::TIMESTAMP WITH TIME ZONE, %(schedule)s::TEXT, %(plan_instance)s::TEXT, %(origin)s::TEXT,
    %(created_version)s::BIGINT, %(state)s::TEXT) ON CONFLICT DO NOTHING RETURNING scheduled_tasks.task_name;
