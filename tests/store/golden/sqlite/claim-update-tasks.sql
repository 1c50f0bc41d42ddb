UPDATE scheduled_tasks SET picked=?, picked_by=?, last_heartbeat=?, version=given_rows.new_version,
    watermark=given_rows.new_watermark, attempt=given_rows.new_attempt, lease=? FROM (SELECT
    json_extract(anon_1.value, ?) AS its_task_name, json_extract(anon_1.value, ?) AS its_task_instance,
    json_extract(anon_1.value, ?) AS its_version, json_extract(anon_1.value, ?) AS new_version,
    json_extract(anon_1.value, ?) AS new_attempt, json_extract(anon_1.value, ?) AS new_watermark
FROM json_each(?) AS anon_1) AS given_rows WHERE scheduled_tasks.task_name = given_rows.its_task_name AND
    scheduled_tasks.task_instance = given_rows.its_task_instance AND scheduled_tasks.version =
    given_rows.its_version AND scheduled_tasks.picked = 0;
