INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, picked, version, priority, kind, slot,
    watermark, next_slot, schedule, plan, created_version) VALUES (%(task_name)s::TEXT, %(task_instance)s::TEXT,
    %(execution_time)s::TIMESTAMP WITH TIME ZONE, %(picked)s, %(version)s::BIGINT, %(priority)s::SMALLINT,
    %(kind)s::TEXT, %(slot)s::TIMESTAMP WITH TIME ZONE, %(watermark)s::TIMESTAMP WITH TIME ZONE,
    %(next_slot)s::TIMESTAMP WITH TIME ZONE, %(schedule)s::TEXT, %(plan)s::JSON, %(created_version)s::BIGINT) ON
    CONFLICT DO NOTHING RETURNING scheduled_tasks.task_name;
