    WITH RECURSIVE heads AS (
        SELECT n.task_name, n.turn, (
            SELECT -coalesce(q.priority, 50) FROM scheduled_tasks AS q
            WHERE q.task_name = n.task_name AND NOT q.picked AND q.state IS NULL
              AND q.schedule IS NULL AND q.plan_instance IS NULL
            ORDER BY -coalesce(q.priority, 50) LIMIT 1) AS rank
        FROM unnest(%(tasks)s::text[]) WITH ORDINALITY AS n(task_name, turn)
        WHERE NOT EXISTS (SELECT FROM scheduled_meta WHERE key = 'paused')
        UNION ALL
        SELECT h.task_name, h.turn, (
            SELECT -coalesce(q.priority, 50) FROM scheduled_tasks AS q
            WHERE q.task_name = h.task_name AND NOT q.picked AND q.state IS NULL
              AND q.schedule IS NULL AND q.plan_instance IS NULL AND -coalesce(q.priority, 50) > h.rank
            ORDER BY -coalesce(q.priority, 50) LIMIT 1)
        FROM heads AS h WHERE h.rank IS NOT NULL)
SELECT least(greatest(min(due), statement_timestamp() - interval '1 day'), timestamptz '9000-01-01Z') -
    statement_timestamp() FROM (
    (SELECT d.execution_time FROM scheduled_tasks AS d
     WHERE NOT d.picked AND d.state IS NULL AND d.lost_count > 0
       AND d.task_name = ANY (%(names)s::text[]) AND NOT EXISTS (SELECT FROM scheduled_meta WHERE key = 'paused')
     ORDER BY d.execution_time LIMIT %(lost)s)
    UNION ALL
    (SELECT d.execution_time FROM scheduled_tasks AS d
     WHERE NOT d.picked AND d.state IS NULL AND (d.schedule IS NOT NULL OR d.plan_instance IS NOT NULL)
       AND d.lost_count = 0 AND d.task_name = ANY (%(names)s::text[])
       AND NOT EXISTS (SELECT FROM scheduled_meta WHERE key = 'paused')
     ORDER BY d.execution_time LIMIT 1)
    UNION ALL
    (SELECT d.execution_time FROM heads AS p CROSS JOIN LATERAL (
        SELECT w.execution_time FROM scheduled_tasks AS w
        WHERE w.task_name = p.task_name AND -coalesce(w.priority, 50) = p.rank AND NOT w.picked AND w.state IS NULL
          AND w.schedule IS NULL AND w.plan_instance IS NULL AND w.lost_count = 0
        ORDER BY w.execution_time LIMIT 1) AS d)) AS waiting(due)
HAVING min(due) IS NOT NULL;
