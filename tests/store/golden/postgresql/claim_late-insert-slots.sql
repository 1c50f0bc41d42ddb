WITH found AS MATERIALIZED (
    SELECT i.*, o.is_open, coalesce(b.first_slot, i.first_slot) AS begin,
        coalesce(b.count, 0) + i.count AS total
    FROM unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[],
        %(holders)s::text[],
                %(firsts)s::timestamptz[], %(lasts)s::timestamptz[], %(counts)s::bigint[],
                    %(reasons)s::text[],
                %(afters)s::timestamptz[])
         WITH ORDINALITY
         AS i(task_name, task_instance, version, holder, first_slot, last_slot, count, reason,
             after, turn)
    CROSS JOIN LATERAL (SELECT (
        SELECT true FROM scheduled_slots AS s
        WHERE s.task_name = i.task_name AND s.task_instance = i.task_instance
          AND s.slot >= i.first_slot AND s.slot <= i.last_slot
          AND CASE WHEN s.finished IS NULL THEN s.token <> i.version
              OR s.worker <> coalesce(i.holder, '')
                   ELSE false END
        LIMIT 1) AS is_open) AS o
    LEFT JOIN LATERAL (
        SELECT n.first_slot, n.count FROM (
            SELECT g.first_slot, g.last_slot, g.count, g.reason FROM scheduled_gaps AS g
            WHERE g.task_name = i.task_name AND g.task_instance = i.task_instance
            ORDER BY g.first_slot DESC LIMIT 1) AS n
        WHERE n.last_slot = i.after AND n.reason = i.reason AND i.count > 1 AND o.is_open IS NULL
          AND (SELECT true FROM scheduled_slots AS s
               WHERE s.task_name = i.task_name AND s.task_instance = i.task_instance
                 AND s.slot > n.last_slot AND s.slot < i.first_slot
               LIMIT 1) IS NULL) AS b ON true
), skipped AS (
    INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, reason, finished)
    SELECT task_name, task_instance, first_slot, 'skipped', reason, %(at)s::timestamptz FROM found
        WHERE count = 1
    ON CONFLICT DO NOTHING
), entered AS (
    INSERT INTO scheduled_gaps AS g (task_name, task_instance, first_slot, last_slot, count, reason,
        created)
    SELECT DISTINCT ON (task_name, task_instance, begin)
        task_name, task_instance, begin, last_slot, total, reason, %(at)s::timestamptz
    FROM found WHERE count > 1
    ORDER BY task_name, task_instance, begin, last_slot DESC
    ON CONFLICT (task_name, task_instance, first_slot) DO UPDATE
    SET last_slot = excluded.last_slot, count = excluded.count, reason = excluded.reason,
        created = excluded.created
    WHERE excluded.last_slot > g.last_slot
)
SELECT turn FROM found WHERE is_open;
