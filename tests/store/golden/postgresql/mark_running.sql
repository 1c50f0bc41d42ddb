UPDATE scheduled_slots AS s SET outcome = 'running', started = statement_timestamp()
WHERE s.task_name = %(name)s AND s.task_instance = %(instance)s AND s.slot = %(slot)s
  AND s.token = %(token)s AND s.worker = %(holder)s AND s.outcome = 'claimed'
RETURNING CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true)
    END;
