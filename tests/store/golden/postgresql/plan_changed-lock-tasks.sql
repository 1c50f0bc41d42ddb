SELECT scheduled_tasks.plan, scheduled_tasks.task_name, scheduled_tasks.task_instance,
    scheduled_tasks.execution_time, scheduled_tasks.version, scheduled_tasks.picked, scheduled_tasks.picked_by,
    scheduled_tasks.task_data, scheduled_tasks.last_success, scheduled_tasks.last_failure,
    scheduled_tasks.consecutive_failures, scheduled_tasks.last_heartbeat, scheduled_tasks.priority,
    scheduled_tasks.kind, scheduled_tasks.slot, scheduled_tasks.watermark, scheduled_tasks.next_slot,
    scheduled_tasks.schedule, scheduled_tasks.plan_instance, scheduled_tasks.origin, scheduled_tasks.collapsed,
    scheduled_tasks.created_version, scheduled_tasks.attempt, scheduled_tasks.lost_count, scheduled_tasks.lease,
    scheduled_tasks.state, scheduled_tasks.cancel_requested, scheduled_tasks.control, scheduled_tasks.parked_due,
    scheduled_tasks.wanted_due, scheduled_tasks.unheld_since, scheduled_tasks.marked, scheduled_tasks.pending
FROM scheduled_tasks
WHERE scheduled_tasks.task_name = %(task_name_1)s::TEXT AND scheduled_tasks.task_instance =
    %(task_instance_1)s::TEXT FOR UPDATE;
