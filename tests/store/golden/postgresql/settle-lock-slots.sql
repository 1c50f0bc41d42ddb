SELECT l.task_name, l.task_instance, l.slot, l.outcome, l.token, l.finished IS NOT NULL,
    l.aborted,
    l.started
FROM unnest(%(names)s::text[], %(instances)s::text[], %(slots)s::timestamptz[])
    AS i(task_name, task_instance, slot)
CROSS JOIN LATERAL (
    SELECT e.* FROM scheduled_slots AS e
    WHERE e.task_name = i.task_name AND e.task_instance = i.task_instance AND e.slot = i.slot
    FOR UPDATE) AS l;
