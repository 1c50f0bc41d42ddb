INSERT INTO scheduled_attempts (task_name, task_instance, slot, token, number, worker, claimed, started, ended,
    outcome, reason, error) VALUES (%(task_name)s::TEXT, %(task_instance)s::TEXT, %(slot)s::TIMESTAMP WITH TIME
    ZONE, %(token)s::BIGINT, %(number)s::INTEGER, %(worker)s::TEXT, %(claimed)s::TIMESTAMP WITH TIME ZONE,
    %(started)s::TIMESTAMP WITH TIME ZONE, %(ended)s::TIMESTAMP WITH TIME ZONE, %(outcome)s::TEXT, %(reason)s::TEXT,
    %(error)s::TEXT) ON CONFLICT DO NOTHING RETURNING scheduled_attempts.task_name;
