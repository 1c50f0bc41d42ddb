SELECT pg_catalog.statement_timestamp(), t.task_name, t.task_instance, t.execution_time, t.version, t.picked,
    t.picked_by, t.last_heartbeat, CASE WHEN t.lease BETWEEN '0' AND '1000 days' THEN t.lease END, t.kind, t.slot,
    t.attempt, t.schedule, t.plan_instance, t.cancel_requested, t.control, t.pending::text FROM scheduled_tasks AS t
    WHERE t.picked
    AND t.task_name = ANY (%(names)s::text[])
ORDER BY t.last_heartbeat LIMIT 10000;
