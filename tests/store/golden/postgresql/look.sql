SELECT statement_timestamp(), t.task_name, t.task_instance, t.execution_time, t.version, t.picked, t.picked_by,
    t.last_heartbeat, t.lease, t.kind, t.slot, t.attempt, t.schedule, t.plan_instance, t.cancel_requested,
    t.control, t.pending::text FROM scheduled_tasks AS t WHERE t.picked AND t.task_name = ANY (%(names)s::text[]);
