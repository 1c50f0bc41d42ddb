INSERT INTO scheduled_workers (worker, host, pid, boot_id, tags, tasks, revision, refused, passed_over, version,
    capacity, state, started, last_seen, lease, skew) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON
    CONFLICT DO NOTHING RETURNING worker;
