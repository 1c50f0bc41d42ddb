INSERT INTO scheduled_keys (task_name, kind, key) VALUES (%(task_name)s::TEXT, %(kind)s::TEXT, %(key)s::TEXT) ON
    CONFLICT DO NOTHING RETURNING scheduled_keys.task_name;
