WITH held AS MATERIALIZED (
    SELECT h.ctid AS place, i.*
    FROM unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[])
         AS i(task_name, task_instance, version)
    CROSS JOIN LATERAL (
        SELECT t.ctid FROM scheduled_tasks AS t
        WHERE t.task_name = i.task_name AND t.task_instance = i.task_instance
          AND CASE WHEN t.version = i.version THEN t.picked_by = %(holder)s ELSE false END
        OFFSET 0) AS h
    WHERE (SELECT true FROM scheduled_slots AS s
           WHERE s.task_name = i.task_name AND s.task_instance = i.task_instance AND s.slot >=
               %(since)s::timestamptz
           LIMIT 1) IS NULL
      AND coalesce((SELECT g.last_slot FROM scheduled_gaps AS g
                    WHERE g.task_name = i.task_name AND g.task_instance = i.task_instance
                    ORDER BY g.first_slot DESC LIMIT 1) < %(beyond)s::timestamptz, true)
), begun AS (
    UPDATE scheduled_tasks AS t
    SET slot = %(slot)s::timestamptz, next_slot = %(next_slot)s::timestamptz, watermark =
        %(watermark)s::timestamptz,
        origin = %(origin)s::text, collapsed = %(collapsed)s::bigint, pending = %(pending)s::json
    WHERE t.ctid = ANY (ARRAY(SELECT place FROM held)) AND t.picked_by = %(holder)s
    RETURNING t.task_name, t.task_instance, t.version
), several AS (
    INSERT INTO scheduled_gaps (task_name, task_instance, first_slot, last_slot, count, reason, created)
    SELECT task_name, task_instance, %(first)s::timestamptz, %(last)s::timestamptz, %(count)s::bigint,
        %(reason)s::text, %(at)s::timestamptz
    FROM begun WHERE %(count)s::bigint > 1
    ON CONFLICT DO NOTHING
), ledger AS (
    INSERT INTO scheduled_slots AS s
        (task_name, task_instance, slot, outcome, origin, attempts, collapsed, token, worker, started)
    SELECT task_name, task_instance, %(slot)s::timestamptz,
        CASE WHEN task_name = ANY (%(strict)s::text[]) THEN 'claimed' ELSE 'running' END,
        coalesce(%(origin)s::text, 'schedule'), 1, %(collapsed)s::bigint, version, %(holder)s,
        CASE WHEN task_name = ANY (%(strict)s::text[]) THEN NULL ELSE %(at)s::timestamptz END
    FROM begun
    ON CONFLICT DO NOTHING
    RETURNING s.task_name, s.task_instance
), skipped AS (
    INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, reason, finished)
    SELECT task_name, task_instance, %(first)s::timestamptz, 'skipped', %(reason)s::text, %(at)s::timestamptz
    FROM begun WHERE %(count)s::bigint = 1
    ON CONFLICT DO NOTHING
)
SELECT n.count = %(asked)s, l.task_name, l.task_instance
FROM (SELECT pg_catalog.count(*) FROM ledger) AS n LEFT JOIN ledger AS l ON n.count < %(asked)s;
