INSERT INTO scheduled_controls (at, author, command, task_name, slot, arguments, note) VALUES (%(at)s::TIMESTAMP
    WITH TIME ZONE, %(author)s::TEXT, %(command)s::TEXT, %(task_name)s::TEXT, %(slot)s::TIMESTAMP WITH TIME ZONE,
    %(arguments)s::TEXT, %(note)s::TEXT) RETURNING scheduled_controls.id;
