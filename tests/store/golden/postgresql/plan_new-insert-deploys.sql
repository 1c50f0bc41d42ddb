INSERT INTO scheduled_deploys (task_name, task_instance, at, former, schedule, revision, worker) VALUES
    (%(task_name)s::TEXT, %(task_instance)s::TEXT, %(at)s::TIMESTAMP WITH TIME ZONE, %(former)s::TEXT,
    %(schedule)s::TEXT, %(revision)s::TEXT, %(worker)s::TEXT) ON CONFLICT DO NOTHING RETURNING
    scheduled_deploys.task_name;
