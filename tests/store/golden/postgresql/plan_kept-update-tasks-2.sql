UPDATE scheduled_tasks SET plan=CAST(CAST(scheduled_tasks.plan AS JSONB) || CAST(%(param_1)s::JSONB AS JSONB) AS
    JSON) WHERE scheduled_tasks.task_name IN (%(task_name_1_1)s::TEXT, %(task_name_1_2)s::TEXT,
    %(task_name_1_3)s::TEXT, %(task_name_1_4)s::TEXT, %(task_name_1_5)s::TEXT) AND scheduled_tasks.task_instance =
    %(task_instance_1)s::TEXT;
