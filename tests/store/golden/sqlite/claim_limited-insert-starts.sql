INSERT INTO scheduled_starts (task_name, at, count) VALUES (?, ?, ?) ON CONFLICT (task_name, at) DO UPDATE SET count
    = (scheduled_starts.count + excluded.count) RETURNING task_name;
