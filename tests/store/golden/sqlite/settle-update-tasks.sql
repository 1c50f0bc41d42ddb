UPDATE scheduled_tasks SET execution_time=?, picked=?, picked_by=?, last_success=?, last_failure=?,
    consecutive_failures=?, last_heartbeat=?, version=(CASE WHEN (scheduled_tasks.version > ?) THEN ? ELSE
    scheduled_tasks.version END + ?), slot=?, watermark=?, next_slot=?, schedule=?, origin=?, collapsed=?,
    attempt=?, lost_count=?, lease=?, state=?, parked_due=?, wanted_due=?, cancel_requested=?, unheld_since=?,
    last_error=?, control=?, pending=?, marked=? WHERE scheduled_tasks.task_name = ? AND
    scheduled_tasks.task_instance = ? AND scheduled_tasks.version = ? AND scheduled_tasks.picked_by = ?;
