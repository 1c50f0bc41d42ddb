WITH held AS MATERIALIZED (
    SELECT h.ctid AS place, e.ctid AS entry, i.*
    FROM unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[])
        WITH ORDINALITY
         AS i(task_name, task_instance, version, turn)
    CROSS JOIN LATERAL (
        SELECT t.ctid FROM scheduled_tasks AS t
        WHERE t.task_name = i.task_name AND t.task_instance = i.task_instance
          AND CASE WHEN t.picked AND t.version = i.version AND t.picked_by = %(holder)s
                   THEN t.kind = 'plan' AND t.slot = %(c_slot)s::timestamptz AND t.watermark =
                       %(c_slot)s::timestamptz
                       AND t.schedule = %(c_schedule)s::text
                        AND (%(c_next_slot)s::timestamptz IS NULL OR %(c_next_slot)s::timestamptz >
                            pg_catalog.statement_timestamp())
                        AND t.attempt = 1 AND t.lost_count = 0 AND t.collapsed = %(c_collapsed)s::bigint
                        AND t.origin IS NOT DISTINCT FROM %(c_origin)s::text AND t.pending IS NULL AND t.state IS
                            NULL AND t.cancel_requested IS NULL AND t.wanted_due IS NULL AND t.parked_due IS NULL
                            AND t.control IS NULL
                   ELSE false END
        FOR UPDATE SKIP LOCKED) AS h
    CROSS JOIN LATERAL (
        SELECT s.ctid FROM scheduled_slots AS s
        WHERE s.task_name = i.task_name AND s.task_instance = i.task_instance AND s.slot = %(c_slot)s::timestamptz
          AND CASE WHEN s.token = i.version THEN s.finished IS NULL AND s.outcome = 'running'
              ELSE false END
        OFFSET 0) AS e
), gone AS (
    UPDATE scheduled_tasks AS t
    SET picked = false, picked_by = NULL, last_heartbeat = NULL, lease = NULL,
        version = t.version + 1, attempt = 0,
        execution_time = %(c_due)s::timestamptz, slot = %(c_next_slot)s::timestamptz, next_slot =
            %(c_after_next)s::timestamptz,
        origin = NULL, collapsed = 0,
        consecutive_failures = 0, last_success = pg_catalog.statement_timestamp(), last_error = NULL
    FROM held AS i
    WHERE t.ctid = ANY (ARRAY(SELECT place FROM held)) AND t.ctid = i.place
      AND t.version = i.version AND t.picked_by = %(holder)s
    RETURNING i.entry, i.turn
), told AS (
    UPDATE scheduled_slots AS s
    SET outcome = 'succeeded', reason = NULL, error = NULL, attempts = 1, finished =
        pg_catalog.statement_timestamp()
    WHERE s.ctid = ANY (ARRAY(SELECT entry FROM gone)) AND s.finished IS NULL
        AND s.outcome = 'running'
    RETURNING 1)
SELECT pg_catalog.pg_current_xact_id()::text, (SELECT pg_catalog.count(*) FROM told),
    ARRAY(SELECT turn FROM gone);
