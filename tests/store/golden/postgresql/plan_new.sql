SELECT pg_catalog.statement_timestamp();

SELECT scheduled_tasks.task_name
FROM scheduled_tasks
WHERE scheduled_tasks.task_name = ANY (CAST(%(param_1)s::TEXT[] AS TEXT[])) AND scheduled_tasks.task_instance =
    %(task_instance_1)s::TEXT AND scheduled_tasks.kind != 'plan';

SELECT scheduled_tasks.task_name, scheduled_tasks.schedule, scheduled_tasks.slot, scheduled_tasks.priority,
    scheduled_tasks.plan, EXISTS (SELECT newest.slot
FROM (SELECT scheduled_slots.task_name AS task_name, scheduled_slots.task_instance AS task_instance,
    scheduled_slots.slot AS slot, scheduled_slots.finished AS finished
FROM scheduled_slots
WHERE scheduled_slots.task_name = scheduled_tasks.task_name AND scheduled_slots.task_instance =
    scheduled_tasks.task_instance ORDER BY scheduled_slots.slot DESC
 LIMIT %(param_1)s::INTEGER) AS newest
WHERE newest.finished IS NULL AND NOT (EXISTS (SELECT *
FROM scheduled_tasks AS standing
WHERE standing.task_name = newest.task_name AND standing.slot = newest.slot AND (standing.task_instance =
    newest.task_instance OR standing.plan_instance = newest.task_instance)))) AS orphaned
FROM scheduled_tasks
WHERE scheduled_tasks.task_name IN (%(task_name_1_1)s::TEXT) AND scheduled_tasks.task_instance =
    %(task_instance_1)s::TEXT ORDER BY scheduled_tasks.task_name COLLATE "C", scheduled_tasks.task_instance COLLATE
    "C" FOR UPDATE OF scheduled_tasks;

SELECT greatest(
    (SELECT s.slot FROM scheduled_slots AS s
     WHERE s.task_name = i.task_name AND s.task_instance = i.task_instance
         AND s.origin IN ('schedule', 'catch_up')
       AND (s.finished IS NOT NULL OR s.outcome <> 'claimed'
           AND i.task_name = ANY (%(strict)s::text[]))
     ORDER BY s.slot DESC LIMIT 1),
    (SELECT g.last_slot FROM scheduled_gaps AS g
     WHERE g.task_name = i.task_name AND g.task_instance = i.task_instance
     ORDER BY g.first_slot DESC LIMIT 1))
FROM unnest(%(names)s::text[], %(instances)s::text[]) WITH ORDINALITY
    AS i(task_name, task_instance, turn)
ORDER BY i.turn;

SELECT pg_catalog.statement_timestamp();

INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, picked, version, priority, kind, slot,
    watermark, next_slot, schedule, plan, created_version) VALUES (%(task_name)s::TEXT, %(task_instance)s::TEXT,
    %(execution_time)s::TIMESTAMP WITH TIME ZONE, %(picked)s, %(version)s::BIGINT, %(priority)s::SMALLINT,
    %(kind)s::TEXT, %(slot)s::TIMESTAMP WITH TIME ZONE, %(watermark)s::TIMESTAMP WITH TIME ZONE,
    %(next_slot)s::TIMESTAMP WITH TIME ZONE, %(schedule)s::TEXT, %(plan)s::JSON, %(created_version)s::BIGINT) ON
    CONFLICT DO NOTHING RETURNING scheduled_tasks.task_name;

SELECT scheduled_tasks.task_name, scheduled_tasks.schedule, scheduled_tasks.slot, scheduled_tasks.priority,
    scheduled_tasks.plan, EXISTS (SELECT newest.slot
FROM (SELECT scheduled_slots.task_name AS task_name, scheduled_slots.task_instance AS task_instance,
    scheduled_slots.slot AS slot, scheduled_slots.finished AS finished
FROM scheduled_slots
WHERE scheduled_slots.task_name = scheduled_tasks.task_name AND scheduled_slots.task_instance =
    scheduled_tasks.task_instance ORDER BY scheduled_slots.slot DESC
 LIMIT %(param_1)s::INTEGER) AS newest
WHERE newest.finished IS NULL AND NOT (EXISTS (SELECT *
FROM scheduled_tasks AS standing
WHERE standing.task_name = newest.task_name AND standing.slot = newest.slot AND (standing.task_instance =
    newest.task_instance OR standing.plan_instance = newest.task_instance)))) AS orphaned
FROM scheduled_tasks
WHERE scheduled_tasks.task_name IN (%(task_name_1_1)s::TEXT) AND scheduled_tasks.task_instance =
    %(task_instance_1)s::TEXT ORDER BY scheduled_tasks.task_name COLLATE "C", scheduled_tasks.task_instance COLLATE
    "C" FOR UPDATE OF scheduled_tasks;
