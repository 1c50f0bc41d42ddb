SELECT pg_catalog.statement_timestamp(), pg_catalog.pg_current_xact_id()::text, q.task_name, q.task_instance,
    q.execution_time, q.version, q.picked, q.picked_by, NULL::bytea, q.last_success, q.last_failure,
    q.consecutive_failures, q.last_heartbeat, q.priority, q.kind, q.slot, q.watermark, q.next_slot, q.schedule,
    q.plan_instance, q.origin, q.collapsed, q.created_version, q.attempt, q.lost_count, q.lease, q.state,
    q.cancel_requested, q.control, q.parked_due, q.wanted_due, q.unheld_since, q.marked, q.pending::text
FROM unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[], %(holders)s::text[])
     AS i(task_name, task_instance, version, holder)
CROSS JOIN LATERAL (
    SELECT h.* FROM scheduled_tasks AS h
    WHERE h.task_name = i.task_name AND h.task_instance = i.task_instance
      AND CASE WHEN h.picked AND h.version = i.version THEN h.picked_by = i.holder ELSE false END
    FOR UPDATE) AS q;
