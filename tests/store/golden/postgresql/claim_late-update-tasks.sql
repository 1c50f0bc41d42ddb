WITH held AS MATERIALIZED (
    SELECT h.ctid AS place, i.*
    FROM unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[],
        %(holders)s::text[])
         AS i(task_name, task_instance, version, holder)
    CROSS JOIN LATERAL (
        SELECT t.ctid FROM scheduled_tasks AS t
        WHERE t.task_name = i.task_name AND t.task_instance = i.task_instance
          AND CASE WHEN t.version = i.version THEN t.picked_by = i.holder ELSE false END
        OFFSET 0) AS h
), begun AS (
    UPDATE scheduled_tasks AS t
    SET slot = %(c_slot)s::timestamptz, next_slot = %(c_next_slot)s::timestamptz, watermark =
        %(c_watermark)s::timestamptz, origin = %(c_origin)s::text, collapsed = %(c_collapsed)s::bigint, attempt =
        %(c_attempt)s::integer, lost_count = %(c_lost_count)s::integer, pending = %(c_pending)s::json
    FROM held AS i
    WHERE t.ctid = ANY (ARRAY(SELECT place FROM held)) AND t.ctid = i.place
  AND t.version = i.version AND t.picked_by = i.holder
    RETURNING t.*
), ledger AS (
    INSERT INTO scheduled_slots AS s
        (task_name, task_instance, slot, outcome, origin, attempts, collapsed, token, worker,
            started)
    SELECT task_name, coalesce(plan_instance, task_instance), slot,
        CASE WHEN task_name = ANY (%(strict)s::text[]) THEN 'claimed' ELSE 'running' END,
        coalesce(origin, 'schedule'), attempt, collapsed, version, picked_by,
        CASE WHEN task_name = ANY (%(strict)s::text[]) THEN NULL ELSE %(claimed_at)s::timestamptz END
    FROM begun
    ON CONFLICT (task_name, task_instance, slot) DO UPDATE
    SET outcome = excluded.outcome, reason = NULL,
        attempts = least(s.attempts, 2147483646) + 1,
        collapsed = excluded.collapsed, token = excluded.token, worker = excluded.worker,
        started = excluded.started, started_before = s.started
    WHERE s.finished IS NULL AND s.outcome <> 'running'
      AND (s.attempts = 0 OR NOT excluded.task_name = ANY (%(strict)s::text[]))
    RETURNING s.task_name, s.task_instance, s.slot, s.token
)
SELECT b.count, l.task_name, l.task_instance, l.slot
FROM (SELECT pg_catalog.count(*) FROM begun) AS b LEFT JOIN ledger AS l ON true;
