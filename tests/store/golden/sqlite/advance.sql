UPDATE scheduled_tasks SET execution_time=?, picked=?, picked_by=?, last_success=?, consecutive_failures=?,
    last_heartbeat=?, version=(scheduled_tasks.version + ?), slot=?, next_slot=?, attempt=?, lease=?, last_error=?
    WHERE scheduled_tasks.task_name = ? AND scheduled_tasks.task_instance = ? AND scheduled_tasks.version = ? AND
    scheduled_tasks.picked_by = ? AND scheduled_tasks.picked = 1 AND scheduled_tasks.plan_instance IS NULL AND
    scheduled_tasks.origin IS NULL AND scheduled_tasks.catch_up_until IS NULL AND scheduled_tasks.state IS NULL AND
    scheduled_tasks.cancel_requested IS NULL AND scheduled_tasks.wanted_due IS NULL AND scheduled_tasks.parked_due
    IS NULL AND scheduled_tasks.slot = ? AND scheduled_tasks.watermark = ? AND scheduled_tasks.schedule = ? AND
    scheduled_tasks.attempt = ? AND scheduled_tasks.lost_count = ? AND scheduled_tasks.collapsed = ? AND (EXISTS
    (SELECT *
FROM scheduled_slots
WHERE scheduled_slots.task_name = ? AND scheduled_slots.task_instance = ? AND scheduled_slots.slot = ? AND
    scheduled_slots.token = ? AND scheduled_slots.outcome = ? AND scheduled_slots.finished IS NULL));

UPDATE scheduled_slots SET outcome=?, reason=?, attempts=?, finished=?, error=? WHERE scheduled_slots.task_name = ?
    AND scheduled_slots.task_instance = ? AND scheduled_slots.slot = ? AND scheduled_slots.token = ? AND
    scheduled_slots.outcome = ? AND scheduled_slots.finished IS NULL;
