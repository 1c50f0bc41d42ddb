DELETE FROM scheduled_starts WHERE scheduled_starts.task_name = ? AND NOT (scheduled_starts.task_name = ? AND
    scheduled_starts.at > ? AND scheduled_starts.at < ?);
