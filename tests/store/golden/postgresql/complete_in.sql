SELECT scheduled_meta.value
FROM scheduled_meta
WHERE scheduled_meta.key = %(key_1)s::VARCHAR;

SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, %(set_config_4)s) AS set_config_1;

SELECT scheduled_slots.token
FROM scheduled_slots
WHERE scheduled_slots.task_name = %(task_name_1)s::VARCHAR AND scheduled_slots.task_instance =
    %(task_instance_1)s::VARCHAR AND scheduled_slots.slot = %(slot_1)s::TIMESTAMP WITH TIME ZONE AND
    scheduled_slots.token = %(token_1)s::BIGINT AND scheduled_slots.worker = %(worker_1)s::VARCHAR AND
    scheduled_slots.outcome = %(outcome_1)s::VARCHAR FOR SHARE;

UPDATE scheduled_slots SET outcome=%(outcome)s::VARCHAR, finished=(statement_timestamp() - %(param_1)s) WHERE
    scheduled_slots.task_name = %(task_name_1)s::VARCHAR AND scheduled_slots.task_instance =
    %(task_instance_1)s::VARCHAR AND scheduled_slots.slot = %(slot_1)s::TIMESTAMP WITH TIME ZONE AND
    scheduled_slots.token = %(token_1)s::BIGINT AND scheduled_slots.worker = %(worker_1)s::VARCHAR AND
    scheduled_slots.outcome = %(outcome_1)s::VARCHAR;

SELECT scheduled_meta.value
FROM scheduled_meta
WHERE scheduled_meta.key = %(key_1)s::VARCHAR;

SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, %(set_config_4)s) AS set_config_1;

SELECT scheduled_tasks.version
FROM scheduled_tasks
WHERE scheduled_tasks.task_name = %(task_name_1)s::VARCHAR AND scheduled_tasks.task_instance =
    %(task_instance_1)s::VARCHAR AND scheduled_tasks.version = %(version_1)s::BIGINT AND scheduled_tasks.picked_by =
    %(picked_by_1)s::VARCHAR FOR KEY SHARE;

INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, origin, attempts, token, worker, started,
    finished) VALUES (%(task_name)s::VARCHAR, %(task_instance)s::VARCHAR, %(slot)s::TIMESTAMP WITH TIME ZONE,
    %(outcome)s::VARCHAR, %(origin)s::VARCHAR, %(attempts)s::INTEGER, %(token)s::BIGINT, %(worker)s::VARCHAR,
    %(started)s::TIMESTAMP WITH TIME ZONE, (statement_timestamp() - %(param_1)s)) ON CONFLICT (task_name,
    task_instance, slot) DO UPDATE SET outcome = excluded.outcome, attempts = excluded.attempts, token =
    excluded.token, worker = excluded.worker, finished = excluded.finished RETURNING scheduled_slots.task_name;
