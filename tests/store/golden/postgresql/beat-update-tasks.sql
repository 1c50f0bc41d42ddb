UPDATE scheduled_tasks AS t
SET last_heartbeat = pg_catalog.statement_timestamp()
WHERE t.ctid = ANY (ARRAY(
        SELECT q.ctid
        FROM unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[])
             AS i(task_name, task_instance, version)
        CROSS JOIN LATERAL (
            SELECT h.ctid FROM scheduled_tasks AS h
            WHERE h.task_name = i.task_name AND h.task_instance = i.task_instance
              AND CASE WHEN h.picked AND h.version = i.version
                  THEN h.picked_by = %(holder)s ELSE false END
            FOR NO KEY UPDATE SKIP LOCKED) AS q))
  AND CASE WHEN t.picked THEN t.picked_by = %(holder)s ELSE false END
RETURNING t.task_name, t.task_instance, t.version;
