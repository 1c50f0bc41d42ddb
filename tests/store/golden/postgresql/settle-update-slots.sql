WITH known AS MATERIALIZED (
    SELECT e.ctid AS place, i.*
    FROM unnest(%(names)s::text[], %(instances)s::text[], %(slots)s::timestamptz[],
        %(tokens)s::bigint[])
         AS i(task_name, task_instance, slot, token)
    CROSS JOIN LATERAL (
        SELECT s.ctid FROM scheduled_slots AS s
        WHERE s.task_name = i.task_name AND s.task_instance = i.task_instance AND s.slot = i.slot
          AND CASE WHEN s.token = i.token THEN s.finished IS NULL ELSE false END
        OFFSET 0) AS e
)
UPDATE scheduled_slots AS s
SET outcome = %(c_outcome)s::text, reason = %(c_reason)s::text, error = %(c_error)s::text, attempts =
    %(c_attempts)s::integer, lost = s.lost + %(c_lost)s::integer, aborted = s.aborted + %(c_aborted)s::integer,
    finished = %(c_finished)s::timestamptz
FROM known AS i
WHERE s.ctid = ANY (ARRAY(SELECT place FROM known)) AND s.ctid = i.place
  AND s.token = i.token AND s.finished IS NULL;
