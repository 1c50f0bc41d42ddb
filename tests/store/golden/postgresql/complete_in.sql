SELECT scheduled_meta.value
FROM scheduled_meta
WHERE scheduled_meta.key = %(key_1)s::TEXT;

SELECT pg_catalog.set_config(%(set_config_2)s::TEXT, %(set_config_3)s::TEXT, %(set_config_4)s) AS set_config_1;

SELECT scheduled_slots.token
FROM scheduled_slots
WHERE scheduled_slots.task_name = %(task_name_1)s::TEXT AND scheduled_slots.task_instance =
    %(task_instance_1)s::TEXT AND scheduled_slots.slot = %(slot_1)s::TIMESTAMP WITH TIME ZONE AND
    scheduled_slots.token = %(token_1)s::BIGINT AND scheduled_slots.worker = %(worker_1)s::TEXT AND
    scheduled_slots.outcome = %(outcome_1)s::TEXT FOR SHARE;

UPDATE scheduled_slots SET outcome=%(outcome)s::TEXT, finished=(pg_catalog.statement_timestamp() - %(param_1)s)
    WHERE scheduled_slots.task_name = %(task_name_1)s::TEXT AND scheduled_slots.task_instance =
    %(task_instance_1)s::TEXT AND scheduled_slots.slot = %(slot_1)s::TIMESTAMP WITH TIME ZONE AND
    scheduled_slots.token = %(token_1)s::BIGINT AND scheduled_slots.worker = %(worker_1)s::TEXT AND
    scheduled_slots.outcome = %(outcome_1)s::TEXT;

SELECT scheduled_meta.value
FROM scheduled_meta
WHERE scheduled_meta.key = %(key_1)s::TEXT;

SELECT pg_catalog.set_config(%(set_config_2)s::TEXT, %(set_config_3)s::TEXT, %(set_config_4)s) AS set_config_1;

SELECT scheduled_tasks.version
FROM scheduled_tasks
WHERE scheduled_tasks.task_name = %(task_name_1)s::TEXT AND scheduled_tasks.task_instance =
    %(task_instance_1)s::TEXT AND scheduled_tasks.version = %(version_1)s::BIGINT AND scheduled_tasks.picked_by =
    %(picked_by_1)s::TEXT FOR KEY SHARE;

INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, origin, attempts, token, worker, started,
    finished) VALUES (%(task_name)s::TEXT, %(task_instance)s::TEXT, %(slot)s::TIMESTAMP WITH TIME ZONE,
    %(outcome)s::TEXT, %(origin)s::TEXT, %(attempts)s::INTEGER, %(token)s::BIGINT, %(worker)s::TEXT,
    %(started)s::TIMESTAMP WITH TIME ZONE, (pg_catalog.statement_timestamp() - %(param_1)s)) ON CONFLICT (task_name,
    task_instance, slot) DO UPDATE SET outcome = excluded.outcome, attempts = excluded.attempts, token =
    excluded.token, worker = excluded.worker, finished = excluded.finished RETURNING scheduled_slots.task_name;
