SELECT scheduled_keys.running
FROM scheduled_keys
WHERE scheduled_keys.task_name = %(task_name_1)s::TEXT AND scheduled_keys.kind = %(kind_1)s::TEXT AND
    scheduled_keys.key = %(key_1)s::TEXT FOR UPDATE SKIP LOCKED;
