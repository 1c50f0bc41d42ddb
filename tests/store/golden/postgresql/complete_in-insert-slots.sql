INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, origin, attempts, token, worker, started,
    finished) VALUES (%(task_name)s::TEXT, %(task_instance)s::TEXT, %(slot)s::TIMESTAMP WITH TIME ZONE,
    %(outcome)s::TEXT, %(origin)s::TEXT, %(attempts)s::INTEGER, %(token)s::BIGINT, %(worker)s::TEXT,
    %(started)s::TIMESTAMP WITH TIME ZONE, pg_catalog.statement_timestamp()) ON CONFLICT (task_name, task_instance,
    slot) DO UPDATE SET outcome = excluded.outcome, attempts = excluded.attempts, token = excluded.token, worker =
    excluded.worker, finished = excluded.finished RETURNING scheduled_slots.task_name;
