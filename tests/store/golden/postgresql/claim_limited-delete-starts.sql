DELETE FROM scheduled_starts WHERE scheduled_starts.task_name = %(task_name_1)s::TEXT AND NOT
    (scheduled_starts.task_name = %(task_name_2)s::TEXT AND scheduled_starts.at > %(at_1)s::TIMESTAMP WITH TIME ZONE
    AND scheduled_starts.at < %(at_2)s::TIMESTAMP WITH TIME ZONE);
