INSERT INTO scheduled_keys (task_name, kind, "key") VALUES (?, ?, ?) ON CONFLICT DO NOTHING RETURNING task_name;
