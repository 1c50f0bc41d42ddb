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
