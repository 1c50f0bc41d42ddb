SELECT token, pg_catalog.set_config('idle_in_transaction_session_timeout', %(lease)s, true)
FROM scheduled_slots
WHERE task_name = %(task_name)s AND task_instance = %(task_instance)s AND slot = %(slot)s
AND token = %(token)s AND worker = %(holder)s AND outcome = 'running' FOR SHARE;
