UPDATE scheduled_tasks SET slot=given_rows.new_slot, watermark=given_rows.new_watermark,
    next_slot=given_rows.new_next_slot, origin=given_rows.new_origin, collapsed=given_rows.new_collapsed,
    attempt=given_rows.new_attempt, lost_count=given_rows.new_lost_count, pending=given_rows.new_pending FROM
    (SELECT json_extract(anon_1.value, ?) AS its_task_name, json_extract(anon_1.value, ?) AS its_task_instance,
    json_extract(anon_1.value, ?) AS its_version, json_extract(anon_1.value, ?) AS new_slot,
    json_extract(anon_1.value, ?) AS new_next_slot, json_extract(anon_1.value, ?) AS new_watermark,
    json_extract(anon_1.value, ?) AS new_origin, json_extract(anon_1.value, ?) AS new_collapsed,
    json_extract(anon_1.value, ?) AS new_attempt, json_extract(anon_1.value, ?) AS new_lost_count,
    json_extract(anon_1.value, ?) AS new_pending
FROM json_each(?) AS anon_1) AS given_rows WHERE scheduled_tasks.task_name = given_rows.its_task_name AND
    scheduled_tasks.task_instance = given_rows.its_task_instance AND scheduled_tasks.version =
    given_rows.its_version AND scheduled_tasks.picked_by = ?;
