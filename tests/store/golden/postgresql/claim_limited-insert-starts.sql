INSERT INTO scheduled_starts (task_name, at, count) VALUES (%(task_name)s::TEXT, %(at)s::TIMESTAMP WITH TIME ZONE,
    %(count)s::BIGINT) ON CONFLICT (task_name, at) DO UPDATE SET count = (scheduled_starts.count + excluded.count)
    RETURNING scheduled_starts.task_name;
