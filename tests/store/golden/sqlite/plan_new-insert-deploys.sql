INSERT INTO scheduled_deploys (task_name, task_instance, at, former, schedule, revision, worker) VALUES (?, ?, ?, ?,
    ?, ?, ?) ON CONFLICT DO NOTHING RETURNING task_name;
