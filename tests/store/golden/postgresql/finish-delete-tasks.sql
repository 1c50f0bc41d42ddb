WITH gone AS (
    DELETE FROM scheduled_tasks AS t
    WHERE t.ctid = ANY (ARRAY(
        SELECT q.ctid
        FROM unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[])
             AS i(task_name, task_instance, version)
        CROSS JOIN LATERAL (
            SELECT h.ctid FROM scheduled_tasks AS h
            WHERE h.task_name = i.task_name AND h.task_instance = i.task_instance
              AND CASE WHEN h.picked AND h.version = i.version AND h.picked_by = %(holder)s
                       THEN h.state IS NULL AND h.wanted_due IS NULL
                           AND h.cancel_requested IS NULL
                       ELSE false END
            FOR UPDATE) AS q))
      AND CASE WHEN t.picked THEN t.picked_by = %(holder)s ELSE false END
    RETURNING 1)
SELECT pg_catalog.pg_current_xact_id()::text, pg_catalog.count(*) FROM gone;
