UPDATE scheduled_tasks SET priority=%(priority)s::SMALLINT, next_slot=%(next_slot)s::TIMESTAMP WITH TIME ZONE,
    schedule=%(schedule)s::TEXT, plan=%(plan)s::JSON WHERE scheduled_tasks.task_name = %(task_name_1)s::TEXT AND
    scheduled_tasks.task_instance = %(task_instance_1)s::TEXT;
