WITH put AS
(INSERT INTO scheduled_tasks (kind, task_name, task_instance, task_data, execution_time, slot, picked, version,
    created_version, priority) SELECT 'task', %(name)s::VARCHAR AS anon_2, anon_3.instance AS instance,
    decode(anon_3.data, %(decode_2)s::VARCHAR) AS decode_1, statement_timestamp() + %(due)s AS anon_4,
    statement_timestamp() + %(due)s AS anon__1, false AS anon_5, (SELECT CAST(EXTRACT(epoch FROM
    statement_timestamp()) * 1000000 AS BIGINT) AS anon_7) AS anon_6, (SELECT CAST(EXTRACT(epoch FROM
    statement_timestamp()) * 1000000 AS BIGINT) AS anon_7) AS anon__2, %(rank)s::SMALLINT AS anon_8
FROM unnest(string_to_array(%(ids)s::VARCHAR, %(string_to_array_1)s::VARCHAR),
    string_to_array(%(all_data)s::VARCHAR, %(string_to_array_2)s::VARCHAR, %(string_to_array_3)s::VARCHAR)) AS
    anon_3(instance, data) ON CONFLICT (task_name, task_instance) DO UPDATE SET task_data = excluded.task_data,
    execution_time = CASE WHEN (scheduled_tasks.state = %(state_1)s::VARCHAR OR excluded.state =
    %(state_2)s::VARCHAR) THEN %(param_1)s::TIMESTAMP WITH TIME ZONE ELSE excluded.execution_time END,
    consecutive_failures = %(param_2)s::INTEGER, version = CASE WHEN (scheduled_tasks.version >= excluded.version)
    THEN scheduled_tasks.version + %(version_1)s::BIGINT ELSE excluded.version END, priority = excluded.priority,
    slot = excluded.slot, created_version = CASE WHEN (scheduled_tasks.version >= excluded.version) THEN
    scheduled_tasks.version + %(version_1)s::BIGINT ELSE excluded.version END, attempt = %(param_3)s::INTEGER,
    lost_count = %(param_4)s::INTEGER, state = CASE WHEN (excluded.state = %(state_3)s::VARCHAR) THEN
    %(param_5)s::VARCHAR WHEN (scheduled_tasks.state = %(state_1)s::VARCHAR OR excluded.state =
    %(state_2)s::VARCHAR) THEN %(param_6)s::VARCHAR END, parked_due = CASE WHEN (scheduled_tasks.state =
    %(state_1)s::VARCHAR OR excluded.state = %(state_2)s::VARCHAR) THEN coalesce(excluded.parked_due,
    excluded.execution_time) END, waits_for = excluded.waits_for, last_error = %(param_7)s::VARCHAR, pending =
    %(param_8)s::JSON WHERE NOT scheduled_tasks.picked AND scheduled_tasks.kind = 'task' RETURNING
    scheduled_tasks.picked)
 SELECT count(*) FILTER (WHERE NOT put.picked) AS anon_1
FROM put;

SELECT pg_current_xact_id()::text;
