WITH put AS
(INSERT INTO scheduled_tasks (kind, task_name, task_instance, task_data, execution_time, slot, picked, version,
    created_version, priority) SELECT 'task', %(name)s::TEXT AS anon_2, anon_3.instance AS instance,
    pg_catalog.decode(anon_3.data, %(decode_2)s::TEXT) AS decode_1, coalesce(anon_3.due,
    pg_catalog.statement_timestamp() + anon_3.delay) AS coalesce_1, coalesce(anon_3.due,
    pg_catalog.statement_timestamp() + anon_3.delay) AS coalesce__1, false AS anon_4, (SELECT CAST(EXTRACT(epoch
    FROM pg_catalog.statement_timestamp()) * 1000000.0 AS BIGINT) AS anon_6) AS anon_5, (SELECT CAST(EXTRACT(epoch
    FROM pg_catalog.statement_timestamp()) * 1000000.0 AS BIGINT) AS anon_6) AS anon__1, anon_3.priority AS priority
FROM unnest(pg_catalog.string_to_array(%(ids)s::TEXT, %(string_to_array_1)s::TEXT),
    pg_catalog.string_to_array(%(all_data)s::TEXT, %(string_to_array_2)s::TEXT, %(string_to_array_3)s::TEXT),
    CAST(%(dues)s::TEXT AS TIMESTAMP WITH TIME ZONE[]), CAST(%(delays)s::TEXT AS INTERVAL[]), CAST(%(ranks)s::TEXT
    AS SMALLINT[])) AS anon_3(instance, data, due, delay, priority) ON CONFLICT (task_name, task_instance) DO UPDATE
    SET task_data = excluded.task_data, execution_time = CASE WHEN (scheduled_tasks.state = %(state_1)s::TEXT OR
    excluded.state = %(state_2)s::TEXT) THEN %(param_1)s::TIMESTAMP WITH TIME ZONE ELSE excluded.execution_time END,
    consecutive_failures = %(param_2)s::INTEGER, version = CASE WHEN (scheduled_tasks.version >= excluded.version)
    THEN scheduled_tasks.version + %(version_1)s::BIGINT ELSE excluded.version END, priority = excluded.priority,
    slot = excluded.slot, created_version = CASE WHEN (scheduled_tasks.version >= excluded.version) THEN
    scheduled_tasks.version + %(version_1)s::BIGINT ELSE excluded.version END, attempt = %(param_3)s::INTEGER,
    lost_count = %(param_4)s::INTEGER, state = CASE WHEN (excluded.state = %(state_3)s::TEXT) THEN %(param_5)s::TEXT
    WHEN (scheduled_tasks.state = %(state_1)s::TEXT OR excluded.state = %(state_2)s::TEXT) THEN %(param_6)s::TEXT
    END, parked_due = CASE WHEN (scheduled_tasks.state = %(state_1)s::TEXT OR excluded.state = %(state_2)s::TEXT)
    THEN coalesce(excluded.parked_due, excluded.execution_time) END, waits_for = excluded.waits_for, last_error =
    %(param_7)s::TEXT, pending = %(param_8)s::JSON WHERE NOT scheduled_tasks.picked AND scheduled_tasks.kind =
    'task' RETURNING scheduled_tasks.picked)
 SELECT pg_catalog.count(*) FILTER (WHERE NOT put.picked) AS anon_1
FROM put;

SELECT pg_catalog.pg_current_xact_id()::text;
