(SELECT d.task_name,
    least(greatest(d.execution_time, pg_catalog.statement_timestamp() - interval '1 day'), timestamptz
        '9000-01-01Z') - pg_catalog.statement_timestamp()
 FROM scheduled_tasks AS d
 WHERE NOT d.picked AND d.state IS NULL AND d.kind <> 'task' AND d.lost_count = 0
   AND NOT EXISTS (SELECT FROM scheduled_meta WHERE key = 'paused')
 ORDER BY d.execution_time LIMIT %(limit)s)
UNION ALL
(SELECT d.task_name,
    least(greatest(d.execution_time, pg_catalog.statement_timestamp() - interval '1 day'), timestamptz
        '9000-01-01Z') - pg_catalog.statement_timestamp()
 FROM scheduled_tasks AS d
 WHERE NOT d.picked AND d.state IS NULL AND d.lost_count > 0
     AND NOT EXISTS (SELECT FROM scheduled_meta WHERE key = 'paused')
          AND d.task_name NOT IN (SELECT p.task_name FROM scheduled_pauses AS p
            WHERE p.scope = 'tasks' AND (p.until IS NULL OR p.until > pg_catalog.statement_timestamp()))
 ORDER BY d.execution_time LIMIT %(lost)s);
