INSERT INTO scheduled_workers (worker, host, pid, boot_id, tags, tasks, revision, refused, version, capacity, state,
    started, last_seen, lease, skew) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (worker) DO
    UPDATE SET capacity = excluded.capacity, state = excluded.state, last_seen = excluded.last_seen, skew =
    excluded.skew;
