    WITH RECURSIVE heads AS (
        SELECT n.task_name, n.turn, n.last, n.since, CASE WHEN n.first = n.last THEN n.first ELSE (
            SELECT -coalesce(q.priority, 50) FROM scheduled_tasks AS q
            WHERE q.task_name = n.task_name AND NOT q.picked AND q.state IS NULL AND q.kind = 'task'
              AND -coalesce(q.priority, 50) >= n.first AND -coalesce(q.priority, 50) <= n.last
            ORDER BY -coalesce(q.priority, 50) LIMIT 1) END AS rank
        FROM unnest(%(heads)s::text[], %(firsts)s::integer[], %(lasts)s::integer[], %(sinces)s::timestamptz[])
             WITH ORDINALITY AS n(task_name, first, last, since, turn)
        WHERE NOT EXISTS (SELECT FROM scheduled_meta WHERE key = 'paused')
        UNION ALL
        SELECT h.task_name, h.turn, h.last, h.since, (
            SELECT -coalesce(q.priority, 50) FROM scheduled_tasks AS q
            WHERE q.task_name = h.task_name AND NOT q.picked AND q.state IS NULL AND q.kind = 'task'
              AND -coalesce(q.priority, 50) > h.rank AND -coalesce(q.priority, 50) <= h.last
            ORDER BY -coalesce(q.priority, 50) LIMIT 1)
        FROM heads AS h WHERE h.rank < h.last)
(SELECT p.task_name FROM heads AS p WHERE (
    SELECT true FROM scheduled_tasks AS w
    WHERE w.task_name = p.task_name AND -coalesce(w.priority, 50) = p.rank AND NOT w.picked AND w.state IS NULL
      AND w.kind = 'task' AND w.lost_count = 0 AND w.execution_time <= pg_catalog.statement_timestamp()
    ORDER BY w.execution_time LIMIT 1))
UNION
(SELECT d.task_name FROM scheduled_tasks AS d
 WHERE NOT d.picked AND d.state IS NULL AND d.kind <> 'task'
   AND d.execution_time <= pg_catalog.statement_timestamp() AND d.task_name = ANY (%(tasks)s::text[]))
UNION
(SELECT d.task_name FROM scheduled_tasks AS d
 WHERE NOT d.picked AND d.state IS NULL AND d.lost_count > 0 AND d.execution_time <=
     pg_catalog.statement_timestamp()
   AND d.task_name = ANY (%(tasks)s::text[]));
