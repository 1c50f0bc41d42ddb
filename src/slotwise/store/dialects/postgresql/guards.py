"""The statements that prove a claim in a caller's transaction, whose driver may have other
placeholders.
"""

#: Lock what proves a claim, and end the transaction if it is idle for longer than the lease.
_SLOT = """\
SELECT token, pg_catalog.set_config('idle_in_transaction_session_timeout', :lease, true)
FROM {slots}
WHERE task_name = :task_name AND task_instance = :task_instance AND slot = :slot
AND token = :token AND worker = :holder AND outcome = 'running' FOR SHARE"""
_TASK = """\
SELECT version, pg_catalog.set_config('idle_in_transaction_session_timeout', :lease, true)
FROM {tasks}
WHERE task_name = :task_name AND task_instance = :task_instance AND version = :token
AND picked_by = :holder FOR KEY SHARE"""
#: Race: the lock of ``held`` waits for a take-over, and then finds no row to save for.
_SAVED = """\
WITH held AS (HELD)
INSERT INTO {checkpoints} (task_name, task_instance, slot, token, updated, value, done, total)
SELECT :task_name, :task_instance, CAST(:slot AS timestamptz), CAST(:token AS bigint),
coalesce(CAST(:now AS timestamptz), pg_catalog.statement_timestamp()),
CAST(:value AS bytea), CAST(:done AS bigint), CAST(:total AS bigint)
FROM held
ON CONFLICT (task_name, task_instance, slot) DO UPDATE SET token = excluded.token,
updated = excluded.updated, value = excluded.value, done = excluded.done, total = excluded.total
RETURNING token"""
#: By whether the claim is of a one-time task, and whether no checkpoint is saved.
GUARDS = {
    (is_task, is_alone): held if is_alone else _SAVED.replace("HELD", held)
    for is_task, held in ((False, _SLOT), (True, _TASK))
    for is_alone in (False, True)
}
