SELECT statement_timestamp();

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
WHERE scheduled_tasks.task_name IN (%(task_name_1_1)s::VARCHAR) AND scheduled_tasks.task_instance =
    %(task_instance_1)s::VARCHAR ORDER BY scheduled_tasks.task_name COLLATE "C", scheduled_tasks.task_instance
    COLLATE "C" FOR UPDATE OF scheduled_tasks;

SELECT scheduled_tasks.plan, scheduled_tasks.task_name, scheduled_tasks.task_instance,
    scheduled_tasks.execution_time, scheduled_tasks.version, scheduled_tasks.picked, scheduled_tasks.picked_by,
    scheduled_tasks.task_data, scheduled_tasks.last_success, scheduled_tasks.last_failure,
    scheduled_tasks.consecutive_failures, scheduled_tasks.last_heartbeat, scheduled_tasks.priority,
    scheduled_tasks.kind, scheduled_tasks.slot, scheduled_tasks.watermark, scheduled_tasks.next_slot,
    scheduled_tasks.schedule, scheduled_tasks.plan_instance, scheduled_tasks.origin, scheduled_tasks.collapsed,
    scheduled_tasks.created_version, scheduled_tasks.attempt, scheduled_tasks.lost_count, scheduled_tasks.lease,
    scheduled_tasks.state, scheduled_tasks.cancel_requested, scheduled_tasks.control, scheduled_tasks.parked_due,
    scheduled_tasks.wanted_due, scheduled_tasks.unheld_since, scheduled_tasks.marked, scheduled_tasks.pending
FROM scheduled_tasks
WHERE scheduled_tasks.task_name = %(task_name_1)s::VARCHAR AND scheduled_tasks.task_instance =
    %(task_instance_1)s::VARCHAR FOR UPDATE;

SELECT statement_timestamp();

UPDATE scheduled_slots SET outcome=CASE WHEN (scheduled_slots.started IS NOT NULL) THEN %(param_1)s::VARCHAR ELSE
    %(param_2)s::VARCHAR END, reason=%(reason)s::VARCHAR, lost=(scheduled_slots.lost + CASE WHEN
    (scheduled_slots.started IS NOT NULL) THEN %(param_3)s::INTEGER ELSE %(param_4)s::INTEGER END),
    finished=%(now)s::TIMESTAMP WITH TIME ZONE WHERE scheduled_slots.task_name = %(plan_name)s::VARCHAR AND
    scheduled_slots.task_instance = %(plan_of)s::VARCHAR AND scheduled_slots.slot IN (SELECT scheduled_slots.slot
FROM scheduled_slots
WHERE scheduled_slots.task_name = %(plan_name)s::VARCHAR AND scheduled_slots.task_instance = %(plan_of)s::VARCHAR
    ORDER BY scheduled_slots.slot DESC
 LIMIT %(param_5)s::INTEGER) AND scheduled_slots.finished IS NULL AND NOT (EXISTS (SELECT *
FROM scheduled_tasks AS standing
WHERE standing.task_name = %(plan_name)s::VARCHAR AND standing.slot = scheduled_slots.slot AND
    (standing.task_instance = %(plan_of)s::VARCHAR OR standing.plan_instance = %(plan_of)s::VARCHAR)));

SELECT greatest(
    (SELECT s.slot FROM scheduled_slots AS s
     WHERE s.task_name = i.task_name AND s.task_instance = i.task_instance AND s.origin IN ('schedule', 'catch_up')
       AND (s.finished IS NOT NULL OR s.outcome <> 'claimed' AND i.task_name = ANY (%(strict)s::text[]))
     ORDER BY s.slot DESC LIMIT 1),
    (SELECT g.last_slot FROM scheduled_gaps AS g
     WHERE g.task_name = i.task_name AND g.task_instance = i.task_instance
     ORDER BY g.first_slot DESC LIMIT 1))
FROM unnest(%(names)s::text[], %(instances)s::text[]) WITH ORDINALITY AS i(task_name, task_instance, turn)
ORDER BY i.turn;

INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, picked, version, priority, kind, slot,
    watermark, next_slot, schedule, plan, created_version) VALUES (%(task_name)s::VARCHAR,
    %(task_instance)s::VARCHAR, %(execution_time)s::TIMESTAMP WITH TIME ZONE, %(picked)s, %(version)s::BIGINT,
    %(priority)s::SMALLINT, %(kind)s::VARCHAR, %(slot)s::TIMESTAMP WITH TIME ZONE, %(watermark)s::TIMESTAMP WITH
    TIME ZONE, %(next_slot)s::TIMESTAMP WITH TIME ZONE, %(schedule)s::VARCHAR, %(plan)s::JSON,
    %(created_version)s::BIGINT) ON CONFLICT DO NOTHING RETURNING scheduled_tasks.task_name;
