SELECT scheduled_tasks.task_name
FROM scheduled_tasks
WHERE scheduled_tasks.task_name IN (SELECT anon_1.value
FROM json_each(?) AS anon_1) AND scheduled_tasks.task_instance = ? AND scheduled_tasks.kind != 'plan';

SELECT scheduled_tasks.task_name, scheduled_tasks.schedule, scheduled_tasks.slot, scheduled_tasks.priority,
    scheduled_tasks."plan", EXISTS (SELECT newest.slot
FROM (SELECT scheduled_slots.task_name AS task_name, scheduled_slots.task_instance AS task_instance,
    scheduled_slots.slot AS slot, scheduled_slots.finished AS finished
FROM scheduled_slots
WHERE scheduled_slots.task_name = scheduled_tasks.task_name AND scheduled_slots.task_instance =
    scheduled_tasks.task_instance ORDER BY scheduled_slots.slot DESC
 LIMIT ? OFFSET ?) AS newest
WHERE newest.finished IS NULL AND NOT (EXISTS (SELECT *
FROM scheduled_tasks AS standing
WHERE standing.task_name = newest.task_name AND standing.slot = newest.slot AND (standing.task_instance =
    newest.task_instance OR standing.plan_instance = newest.task_instance)))) AS orphaned
FROM scheduled_tasks
WHERE scheduled_tasks.task_name IN (?) AND scheduled_tasks.task_instance = ? ORDER BY scheduled_tasks.task_name,
    scheduled_tasks.task_instance;

SELECT (SELECT scheduled_slots.slot
FROM scheduled_slots
WHERE scheduled_slots.task_name = ? AND scheduled_slots.task_instance = ? AND scheduled_slots.origin IN (?, ?) AND
    (scheduled_slots.finished IS NOT NULL OR scheduled_slots.outcome != ?) ORDER BY scheduled_slots.slot DESC
 LIMIT ? OFFSET ?) AS anon_1, (SELECT scheduled_gaps.last_slot
FROM scheduled_gaps
WHERE scheduled_gaps.task_name = ? AND scheduled_gaps.task_instance = ? ORDER BY scheduled_gaps.first_slot DESC
 LIMIT ? OFFSET ?) AS anon_2;

INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, picked, version, priority, kind, slot,
    watermark, next_slot, schedule, "plan", created_version) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON
    CONFLICT DO NOTHING RETURNING task_name;

SELECT scheduled_tasks.task_name, scheduled_tasks.schedule, scheduled_tasks.slot, scheduled_tasks.priority,
    scheduled_tasks."plan", EXISTS (SELECT newest.slot
FROM (SELECT scheduled_slots.task_name AS task_name, scheduled_slots.task_instance AS task_instance,
    scheduled_slots.slot AS slot, scheduled_slots.finished AS finished
FROM scheduled_slots
WHERE scheduled_slots.task_name = scheduled_tasks.task_name AND scheduled_slots.task_instance =
    scheduled_tasks.task_instance ORDER BY scheduled_slots.slot DESC
 LIMIT ? OFFSET ?) AS newest
WHERE newest.finished IS NULL AND NOT (EXISTS (SELECT *
FROM scheduled_tasks AS standing
WHERE standing.task_name = newest.task_name AND standing.slot = newest.slot AND (standing.task_instance =
    newest.task_instance OR standing.plan_instance = newest.task_instance)))) AS orphaned
FROM scheduled_tasks
WHERE scheduled_tasks.task_name IN (?) AND scheduled_tasks.task_instance = ? ORDER BY scheduled_tasks.task_name,
    scheduled_tasks.task_instance;
