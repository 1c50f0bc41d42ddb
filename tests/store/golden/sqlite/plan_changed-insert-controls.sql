INSERT INTO scheduled_controls (at, author, command, task_name, slot, arguments, note) VALUES (?, ?, ?, ?, ?, ?, ?);
