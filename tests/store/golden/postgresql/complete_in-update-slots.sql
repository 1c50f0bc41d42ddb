UPDATE scheduled_slots SET outcome=%(outcome)s::TEXT, finished=pg_catalog.statement_timestamp() WHERE
    scheduled_slots.task_name = %(task_name_1)s::TEXT AND scheduled_slots.task_instance = %(task_instance_1)s::TEXT
    AND scheduled_slots.slot = %(slot_1)s::TIMESTAMP WITH TIME ZONE AND scheduled_slots.token = %(token_1)s::BIGINT
    AND scheduled_slots.worker = %(worker_1)s::TEXT AND scheduled_slots.outcome = %(outcome_1)s::TEXT;
