    WITH RECURSIVE heads AS (
        SELECT n.task_name, n.turn, n.last, n.since, CASE WHEN n.first = n.last THEN n.first
            ELSE (
            SELECT -coalesce(q.priority, 50) FROM scheduled_tasks AS q
            WHERE q.task_name = n.task_name AND NOT q.picked AND q.state IS NULL
                AND q.kind = 'task'
              AND -coalesce(q.priority, 50) >= n.first AND -coalesce(q.priority, 50) <= n.last
            ORDER BY -coalesce(q.priority, 50) LIMIT 1) END AS rank
        FROM unnest(%(heads)s::text[], %(firsts)s::integer[], %(lasts)s::integer[],
            %(sinces)s::timestamptz[])
             WITH ORDINALITY AS n(task_name, first, last, since, turn)
        WHERE NOT EXISTS (SELECT FROM scheduled_meta WHERE key = 'paused')
          AND NOT EXISTS (SELECT FROM scheduled_pauses AS p
            WHERE p.task_name = n.task_name AND p.scope = 'tasks'
                AND (p.until IS NULL OR p.until > pg_catalog.statement_timestamp()))
        UNION ALL
        SELECT h.task_name, h.turn, h.last, h.since, (
            SELECT -coalesce(q.priority, 50) FROM scheduled_tasks AS q
            WHERE q.task_name = h.task_name AND NOT q.picked AND q.state IS NULL
                AND q.kind = 'task'
              AND -coalesce(q.priority, 50) > h.rank AND -coalesce(q.priority, 50) <= h.last
            ORDER BY -coalesce(q.priority, 50) LIMIT 1)
        FROM heads AS h WHERE h.rank < h.last), own AS MATERIALIZED (
    SELECT d.execution_time AS due FROM scheduled_tasks AS d
    WHERE NOT d.picked AND d.state IS NULL AND d.kind <> 'task'
      AND CASE WHEN d.lost_count = 0
          THEN d.task_name IN (SELECT pg_catalog.unnest(%(names)s::text[])) ELSE false END
      AND NOT EXISTS (SELECT FROM scheduled_meta WHERE key = 'paused')
    ORDER BY d.execution_time LIMIT 1
)
SELECT CASE WHEN pg_catalog.count(waiting.due) > 0 THEN
        least(greatest(pg_catalog.min(waiting.due), pg_catalog.statement_timestamp() - interval '1 day'),
            timestamptz '9000-01-01Z') - pg_catalog.statement_timestamp() END,
    (SELECT f.due FROM (SELECT least((SELECT due FROM own), pg_catalog.statement_timestamp()) OFFSET 0) AS f(due)
    WHERE CASE WHEN f.due > (
        SELECT d.execution_time FROM scheduled_tasks AS d WHERE NOT d.picked AND d.state IS NULL
            AND d.kind <> 'task'
        ORDER BY d.execution_time LIMIT 1) THEN f.due > (
        SELECT d.execution_time FROM scheduled_tasks AS d WHERE NOT d.picked AND d.state IS NULL
            AND d.kind <> 'task'
        ORDER BY d.execution_time OFFSET 1000 LIMIT 1) ELSE false END)
FROM (
    (SELECT d.execution_time FROM scheduled_tasks AS d
     WHERE NOT d.picked AND d.state IS NULL AND d.lost_count > 0
       AND d.task_name = ANY (%(names)s::text[])
           AND NOT EXISTS (SELECT FROM scheduled_meta WHERE key = 'paused')
          AND d.task_name NOT IN (SELECT p.task_name FROM scheduled_pauses AS p
            WHERE p.scope = 'tasks' AND (p.until IS NULL OR p.until > pg_catalog.statement_timestamp()))
     ORDER BY d.execution_time LIMIT %(lost)s)
    UNION ALL
    SELECT due FROM own
    UNION ALL
    (SELECT d.execution_time FROM heads AS p CROSS JOIN LATERAL (
        SELECT w.execution_time FROM scheduled_tasks AS w
        WHERE w.task_name = p.task_name AND -coalesce(w.priority, 50) = p.rank AND NOT w.picked
            AND w.state IS NULL
          AND w.kind = 'task' AND w.lost_count = 0
        ORDER BY w.execution_time LIMIT 1) AS d)) AS waiting(due);
