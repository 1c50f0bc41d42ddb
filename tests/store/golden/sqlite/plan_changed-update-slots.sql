UPDATE scheduled_slots SET outcome=CASE WHEN (scheduled_slots.started IS NOT NULL) THEN ? ELSE ? END, reason=?,
    lost=(scheduled_slots.lost + CASE WHEN (scheduled_slots.started IS NOT NULL) THEN ? ELSE ? END), finished=?
    WHERE scheduled_slots.task_name = ? AND scheduled_slots.task_instance = ? AND scheduled_slots.slot IN (SELECT
    newest.slot
FROM (SELECT scheduled_slots.slot AS slot
FROM scheduled_slots
WHERE scheduled_slots.task_name = ? AND scheduled_slots.task_instance = ? ORDER BY scheduled_slots.slot DESC
 LIMIT ? OFFSET ?) AS newest) AND scheduled_slots.finished IS NULL AND NOT (EXISTS (SELECT *
FROM scheduled_tasks AS standing
WHERE standing.task_name = ? AND standing.slot = scheduled_slots.slot AND (standing.task_instance = ? OR
    standing.plan_instance = ?)));
