SELECT statement_timestamp();

INSERT INTO scheduled_workers (worker, host, pid, boot_id, tags, tasks, revision, refused, passed_over, version,
    capacity, state, started, last_seen, lease, skew) VALUES (%(worker)s::VARCHAR, %(host)s::VARCHAR,
    %(pid)s::INTEGER, %(boot_id)s::VARCHAR, %(tags)s::VARCHAR, %(tasks)s::VARCHAR, %(revision)s::VARCHAR,
    %(refused)s::VARCHAR, %(passed_over)s::VARCHAR, %(version)s::VARCHAR, %(capacity)s::INTEGER, %(state)s::VARCHAR,
    %(started)s::TIMESTAMP WITH TIME ZONE, %(last_seen)s::TIMESTAMP WITH TIME ZONE, %(lease)s::INTERVAL, %(skew)s)
    ON CONFLICT DO NOTHING RETURNING scheduled_workers.worker;
