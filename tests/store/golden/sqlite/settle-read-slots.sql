SELECT scheduled_slots.task_name, scheduled_slots.task_instance, scheduled_slots.slot, scheduled_slots.outcome,
    scheduled_slots.token, scheduled_slots.aborted, scheduled_slots.started, scheduled_slots.finished IS NOT NULL AS
    anon_1
FROM scheduled_slots, (SELECT json_extract(anon_2.value, ?) AS task_name, json_extract(anon_2.value, ?) AS
    task_instance, json_extract(anon_2.value, ?) AS slot
FROM json_each(?) AS anon_2) AS given_rows
WHERE scheduled_slots.task_name = given_rows.task_name AND scheduled_slots.task_instance = given_rows.task_instance
    AND scheduled_slots.slot = given_rows.slot ORDER BY scheduled_slots.task_name, scheduled_slots.task_instance,
    scheduled_slots.slot;
