SELECT scheduled_starts.task_name, pg_catalog.sum(scheduled_starts.count) AS sum_1
FROM scheduled_starts
WHERE scheduled_starts.task_name = %(task_name_1)s::TEXT AND scheduled_starts.at > %(at_1)s::TIMESTAMP WITH TIME
    ZONE AND scheduled_starts.at < %(at_2)s::TIMESTAMP WITH TIME ZONE GROUP BY scheduled_starts.task_name;
