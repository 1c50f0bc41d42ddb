SELECT scheduled_starts.task_name, sum(scheduled_starts.count) AS sum_1
FROM scheduled_starts
WHERE scheduled_starts.task_name = ? AND scheduled_starts.at > ? AND scheduled_starts.at < ? GROUP BY
    scheduled_starts.task_name;
