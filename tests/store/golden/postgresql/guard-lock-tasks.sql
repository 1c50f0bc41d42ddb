SELECT version, pg_catalog.set_config('idle_in_transaction_session_timeout', %(lease)s, true)
FROM scheduled_tasks
WHERE task_name = %(task_name)s AND task_instance = %(task_instance)s AND version = %(token)s
AND picked_by = %(holder)s FOR KEY SHARE;
