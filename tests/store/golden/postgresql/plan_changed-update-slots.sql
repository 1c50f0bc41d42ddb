UPDATE scheduled_slots SET outcome=CASE WHEN (scheduled_slots.started IS NOT NULL) THEN %(param_1)s::TEXT ELSE
    %(param_2)s::TEXT END, reason=%(reason)s::TEXT, lost=(scheduled_slots.lost + CASE WHEN (scheduled_slots.started
    IS NOT NULL) THEN %(param_3)s::INTEGER ELSE %(param_4)s::INTEGER END), finished=%(now)s::TIMESTAMP WITH TIME
    ZONE WHERE scheduled_slots.task_name = %(plan_name)s::TEXT AND scheduled_slots.task_instance = %(plan_of)s::TEXT
    AND scheduled_slots.slot IN (SELECT newest.slot
FROM (SELECT scheduled_slots.slot AS slot
FROM scheduled_slots
WHERE scheduled_slots.task_name = %(plan_name)s::TEXT AND scheduled_slots.task_instance = %(plan_of)s::TEXT ORDER BY
    scheduled_slots.slot DESC
 LIMIT %(param_5)s::INTEGER) AS newest) AND scheduled_slots.finished IS NULL AND NOT (EXISTS (SELECT *
FROM scheduled_tasks AS standing
WHERE standing.task_name = %(plan_name)s::TEXT AND standing.slot = scheduled_slots.slot AND (standing.task_instance
    = %(plan_of)s::TEXT OR standing.plan_instance = %(plan_of)s::TEXT)));
