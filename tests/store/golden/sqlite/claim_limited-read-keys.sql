SELECT scheduled_keys.running
FROM scheduled_keys
WHERE scheduled_keys.task_name = ? AND scheduled_keys.kind = ? AND scheduled_keys."key" = ?;
