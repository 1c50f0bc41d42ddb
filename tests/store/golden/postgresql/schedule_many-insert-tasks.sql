WITH put AS
(INSERT INTO scheduled_tasks (kind, task_name, task_instance, task_data, execution_time, slot, picked, version,
    created_version, priority) SELECT 'task', CAST(%(name)s AS text), i.instance, pg_catalog.decode(i.data, 'hex'),
    coalesce(i.due, CAST(pg_catalog.statement_timestamp() AS timestamptz) + i.delay), coalesce(i.due,
        CAST(pg_catalog.statement_timestamp() AS timestamptz) + i.delay), false,
    (SELECT CAST(extract(epoch FROM CAST(pg_catalog.statement_timestamp() AS timestamptz)) * 1000000.0 AS bigint)),
    (SELECT CAST(extract(epoch FROM CAST(pg_catalog.statement_timestamp() AS timestamptz)) * 1000000.0 AS bigint)),
        i.priority
FROM unnest(
        pg_catalog.string_to_array(CAST(%(ids)s AS text), pg_catalog.chr(10)),
        pg_catalog.string_to_array(CAST(%(all_data)s AS text), ',', ''),
        CAST(pg_catalog.string_to_array(CAST(%(dues)s AS text), ',', '') AS timestamptz[]),
        CAST(CAST(%(delays)s AS text) AS interval[]),
        CAST(CAST(%(ranks)s AS text) AS smallint[]))
    AS i(instance, data, due, delay, priority) ON CONFLICT (task_name, task_instance) DO UPDATE SET task_data =
        excluded.task_data, execution_time = CASE WHEN (scheduled_tasks.state = %(state_1)s::TEXT OR excluded.state
        = %(state_2)s::TEXT) THEN %(param_1)s::TIMESTAMP WITH TIME ZONE ELSE excluded.execution_time END,
        consecutive_failures = %(param_2)s::INTEGER, version = CASE WHEN (scheduled_tasks.version >=
        excluded.version) THEN scheduled_tasks.version + %(version_1)s::BIGINT ELSE excluded.version END, priority =
        excluded.priority, slot = excluded.slot, created_version = CASE WHEN (scheduled_tasks.version >=
        excluded.version) THEN scheduled_tasks.version + %(version_1)s::BIGINT ELSE excluded.version END, attempt =
        %(param_3)s::INTEGER, lost_count = %(param_4)s::INTEGER, state = CASE WHEN (excluded.state =
        %(state_3)s::TEXT) THEN %(param_5)s::TEXT WHEN (scheduled_tasks.state = %(state_1)s::TEXT OR excluded.state
        = %(state_2)s::TEXT) THEN %(param_6)s::TEXT END, parked_due = CASE WHEN (scheduled_tasks.state =
        %(state_1)s::TEXT OR excluded.state = %(state_2)s::TEXT) THEN coalesce(excluded.parked_due,
        excluded.execution_time) END, waits_for = excluded.waits_for, last_error = %(param_7)s::TEXT, pending =
        %(param_8)s::JSON WHERE NOT scheduled_tasks.picked AND scheduled_tasks.kind = 'task' RETURNING
        scheduled_tasks.picked)
 SELECT pg_catalog.count(*) FILTER (WHERE NOT put.picked) AS anon_1
FROM put;
