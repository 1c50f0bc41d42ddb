UPDATE scheduled_tasks SET last_heartbeat=? FROM (SELECT json_extract(anon_1.value, ?) AS its_task_name,
    json_extract(anon_1.value, ?) AS its_task_instance, json_extract(anon_1.value, ?) AS its_version,
    json_extract(anon_1.value, ?) AS its_picked_by
FROM json_each(?) AS anon_1) AS given_rows WHERE scheduled_tasks.task_name = given_rows.its_task_name AND
    scheduled_tasks.task_instance = given_rows.its_task_instance AND scheduled_tasks.version =
    given_rows.its_version AND scheduled_tasks.picked_by = given_rows.its_picked_by;
