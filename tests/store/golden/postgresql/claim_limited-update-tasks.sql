UPDATE scheduled_tasks AS t
SET picked = true, picked_by = %(holder)s, last_heartbeat = pg_catalog.statement_timestamp(), lease = %(lease)s,
    version = greatest(least(t.version, 4611686018427387901) + 1,
        (SELECT (extract(epoch FROM pg_catalog.statement_timestamp()) * 1000000.0)::bigint)),
    attempt = least(t.attempt, 2147483646) + 1
WHERE t.ctid = ANY (ARRAY(
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
        FROM heads AS h WHERE h.rank < h.last)
    SELECT d.ctid FROM (SELECT task_name, rank, since FROM heads WHERE rank IS NOT NULL
        ORDER BY rank, turn) AS p
    CROSS JOIN LATERAL (
        SELECT w.ctid FROM scheduled_tasks AS w
        WHERE w.task_name = p.task_name AND -coalesce(w.priority, 50) = p.rank AND NOT w.picked
            AND w.state IS NULL
          AND w.kind = 'task' AND w.lost_count = 0 AND w.execution_time <= pg_catalog.statement_timestamp()
          AND w.execution_time >= p.since
        ORDER BY w.execution_time
        LIMIT least(%(limit)s::integer, (
            SELECT m.most
            FROM unnest(%(bounded)s::text[], %(most)s::integer[]) AS m(task_name, most)
            WHERE m.task_name = p.task_name))
        FOR UPDATE SKIP LOCKED) AS d
    LIMIT %(limit)s))
  AND CASE WHEN t.picked OR t.state IS NOT NULL OR t.kind <> 'task' THEN false
           ELSE t.execution_time <= pg_catalog.statement_timestamp() AND t.task_name = ANY (%(tasks)s::text[]) END
RETURNING -coalesce(t.priority, 50), t.execution_time, t.task_name, t.task_instance, t.version, CASE WHEN
    pg_catalog.length(task_data) <= 1048640 THEN task_data END, t.slot IS NOT DISTINCT FROM t.execution_time,
    nullif(t.slot, t.execution_time), t.created_version, t.attempt, t.cancel_requested, t.last_heartbeat, CASE WHEN
    pg_catalog.length(task_data) > 1048640
         THEN 'payload too large: ' || pg_catalog.length(task_data)::text || ' bytes, at most 1048576 are allowed'
         WHEN version > 4611686018427387901 THEN 'its version cannot rise further; give it a lower one'
         WHEN attempt > 2147483646 THEN 'its attempts cannot be counted; set attempt to 0' END, coalesce(
    (SELECT true FROM scheduled_tasks AS d
     WHERE NOT d.picked AND d.state IS NULL AND d.kind <> 'task' AND d.execution_time <=
         pg_catalog.statement_timestamp()
     ORDER BY d.execution_time LIMIT 1),
    (SELECT true FROM scheduled_tasks AS d
     WHERE NOT d.picked AND d.state IS NULL AND d.lost_count > 0
         AND d.execution_time <= pg_catalog.statement_timestamp()
          AND d.task_name NOT IN (SELECT p.task_name FROM scheduled_pauses AS p
            WHERE p.scope = 'tasks' AND (p.until IS NULL OR p.until > pg_catalog.statement_timestamp()))
     ORDER BY d.execution_time LIMIT 1),
    false);
