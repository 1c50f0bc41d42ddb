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
)
DELETE FROM scheduled_tasks AS t USING held AS i
WHERE t.ctid = ANY (ARRAY(SELECT place FROM held)) AND t.ctid = i.place
  AND t.version = i.version AND t.picked_by = i.holder;
