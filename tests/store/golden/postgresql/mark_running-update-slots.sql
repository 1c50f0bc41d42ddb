UPDATE scheduled_slots AS s SET outcome = 'running', started = pg_catalog.statement_timestamp()
WHERE s.task_name = %(name)s AND s.task_instance = %(instance)s AND s.slot = %(slot)s
  AND s.token = %(token)s AND s.worker = %(holder)s AND s.outcome = 'claimed'
RETURNING CASE pg_catalog.current_setting('synchronous_commit') WHEN 'off'
    THEN pg_catalog.set_config('synchronous_commit', 'on', true) END;
