SELECT pg_catalog.statement_timestamp() AS statement_timestamp_1, scheduled_tasks.task_name,
    scheduled_tasks.task_instance, scheduled_tasks.execution_time, scheduled_tasks.version, scheduled_tasks.picked,
    scheduled_tasks.picked_by, scheduled_tasks.last_heartbeat, CASE WHEN (scheduled_tasks.lease BETWEEN
    %(param_1)s::INTERVAL AND %(param_2)s::INTERVAL) THEN scheduled_tasks.lease END AS lease, scheduled_tasks.kind,
    scheduled_tasks.slot, scheduled_tasks.attempt, scheduled_tasks.schedule, scheduled_tasks.plan_instance,
    scheduled_tasks.cancel_requested, scheduled_tasks.control, scheduled_tasks.pending
FROM scheduled_tasks
WHERE scheduled_tasks.picked AND scheduled_tasks.task_name = ANY (CAST(%(param_3)s::TEXT[] AS TEXT[])) ORDER BY
    scheduled_tasks.last_heartbeat
 LIMIT %(param_4)s::INTEGER;
