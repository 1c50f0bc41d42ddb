INSERT INTO scheduled_workers (worker, host, pid, boot_id, tags, tasks, revision, refused, passed_over, version,
    capacity, state, started, last_seen, lease, skew) VALUES (%(worker)s::TEXT, %(host)s::TEXT, %(pid)s::INTEGER,
    %(boot_id)s::TEXT, %(tags)s::TEXT, %(tasks)s::TEXT, %(revision)s::TEXT, %(refused)s::TEXT,
    %(passed_over)s::TEXT, %(version)s::TEXT, %(capacity)s::INTEGER, %(state)s::TEXT, %(started)s::TIMESTAMP WITH
    TIME ZONE, %(last_seen)s::TIMESTAMP WITH TIME ZONE, %(lease)s::INTERVAL, %(skew)s) ON CONFLICT DO NOTHING
    RETURNING scheduled_workers.worker;
