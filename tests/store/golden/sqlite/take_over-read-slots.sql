SELECT scheduled_slots.task_name, scheduled_slots.task_instance, scheduled_slots.slot
FROM scheduled_slots, (SELECT json_extract(anon_1.value, ?) AS task_name, json_extract(anon_1.value, ?) AS
    task_instance, json_extract(anon_1.value, ?) AS slot
FROM json_each(?) AS anon_1) AS given_rows
WHERE scheduled_slots.task_name = given_rows.task_name AND scheduled_slots.task_instance = given_rows.task_instance
    AND scheduled_slots.slot = given_rows.slot;
