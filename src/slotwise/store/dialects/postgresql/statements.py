"""PostgreSQL's hot statements, as text that can be read and EXPLAINed as it is.

Rules behind them, each from an experiment:
- "now" is statement_timestamp(): clock_timestamp() is volatile and prevents the use of the index.
- There is no join to choose: a claim finds rows by ctid, which cannot flip to a hash join with a
  sequential scan. Held rows and ledger rows are found by key in a LATERAL join, or by the ctid of
  a row that is locked.
- Priority orders the oldest due rows only. With an index led by priority, a claim that finds
  nothing would walk all future rows; without a limit on the sort, it would cost as much as the
  whole backlog.
- Rows that were lost before are few and have an index of their own. The array of both is cut at
  the end: the planner can only guess at a LIMIT that is computed.
- No row makes a claim fail: numbers stop below the end of their columns, documents are read as
  text, and payloads above the limit not at all. Such a row comes with its flaw.
- A claim looks its rows' names up in a hash: IN with an unnest that no join replaces. ``= ANY``
  compares one by one.
- The claim's UPDATE repeats the conditions of its SELECT: a ctid may have been reused in between.
  It does so within a CASE, which no index fits: on a table never analysed, the planner would else
  search all due rows once more.
- Each function bears its schema: a name alone is searched in the session's search_path. The
  parser itself resolves an unnest of several arrays, always to pg_catalog's.
- Heartbeat and reaper never wait (SKIP LOCKED). Settlements lock in key order, so they cannot
  deadlock.
"""

from collections.abc import Iterable

from slotwise.store.dialects.postgresql.claimed_rows import SLOT_COLUMNS, TASK_COLUMNS
from slotwise.store.schema.rows import LAST_ATTEMPT, LAST_VERSION, ROW_COLUMNS
from slotwise.store.schema.tables import WINDOW


def _enter(source: str, started: str, distinct: str = "") -> str:
    """Return the part of a statement that enters the slots of claimed rows into the ledger.

    A slot that is there already may start if it has not ended, does not run, and was never
    started if its job starts each slot once (``strict``).
    """
    return f"""\
    INSERT INTO {{slots}} AS s
        (task_name, task_instance, slot, outcome, origin, attempts, collapsed, token, worker,
            started)
    SELECT {distinct}task_name, coalesce(plan_instance, task_instance), slot,
        CASE WHEN task_name = ANY (%(strict)s::text[]) THEN 'claimed' ELSE 'running' END,
        coalesce(origin, 'schedule'), attempt, collapsed, version, picked_by,
        CASE WHEN task_name = ANY (%(strict)s::text[]) THEN NULL ELSE {started} END
    FROM {source}
    ON CONFLICT (task_name, task_instance, slot) DO UPDATE
    SET outcome = excluded.outcome, reason = NULL,
        attempts = least(s.attempts, {LAST_ATTEMPT}) + 1,
        collapsed = excluded.collapsed, token = excluded.token, worker = excluded.worker,
        started = excluded.started, started_before = s.started
    WHERE s.finished IS NULL AND s.outcome <> 'running'
      AND (s.attempts = 0 OR NOT excluded.task_name = ANY (%(strict)s::text[]))
    RETURNING s.task_name, s.task_instance, s.slot, s.token"""


#: The slots of a claim that are on time, and that no gate may stop: ``enters_at_once`` says the
#: same.
_ENTERS_AT_ONCE = """due
    WHERE slot IS NOT NULL
      AND (kind = 'detached' OR kind = 'plan'
          AND (attempt > 1 OR next_slot IS NULL OR next_slot > {now}))
      AND (attempt > 1 OR coalesce(origin, 'schedule') NOT IN ('schedule', 'catch_up')
           OR NOT (task_name = ANY (%(weighed)s::text[])
                   OR %(late)s::interval IS NOT NULL
                       AND (origin = 'catch_up' OR slot < {now} - %(late)s::interval)))"""

_CLAIM_ENTERS = _enter(
    _ENTERS_AT_ONCE,
    "{now}",
    distinct="DISTINCT ON (task_name, coalesce(plan_instance, task_instance), slot)\n        ",
)
CLAIM = f"""\
WITH due AS (
    UPDATE {{tasks}} AS t
    SET picked = true, picked_by = %(holder)s, last_heartbeat = {{now}}, lease = %(lease)s,
        version = greatest(least(t.version, {{last_version}}) + 1,
            (extract(epoch FROM {{now}}) * 1000000.0)::bigint),
        attempt = least(t.attempt, {{last_attempt}}) + 1,
        watermark = CASE WHEN t.kind = 'plan' THEN greatest(t.watermark, t.slot)
            ELSE t.watermark END
    WHERE t.ctid = ANY ((ARRAY(
        SELECT d.ctid FROM {{tasks}} AS d
        WHERE NOT d.picked AND d.state IS NULL AND d.lost_count > 0
            AND d.execution_time <= {{now}}
          AND {{who}}{{unpaused}}
        ORDER BY d.execution_time
        LIMIT %(lost)s
        FOR UPDATE SKIP LOCKED) || ARRAY(
        {{fresh}}
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED))[1:%(limit)s::integer])
      AND CASE WHEN t.picked OR t.state IS NOT NULL THEN false
               ELSE t.execution_time <= {{now}}
                   AND t.task_name IN (SELECT pg_catalog.unnest(%(names)s::text[])) END
    RETURNING {{columns}}
), ledger AS (
{_CLAIM_ENTERS}
)
SELECT {{now}}, kind = 'task' OR EXISTS (
        SELECT FROM ledger AS l
        WHERE l.task_name = due.task_name
            AND l.task_instance = coalesce(due.plan_instance, due.task_instance)
          AND l.slot = due.slot AND l.token = due.version),
    {{slot_columns}}
FROM due
ORDER BY -coalesce(priority, 50), execution_time"""

#: Of the oldest due rows, those of the highest priority; the oldest, where all of those have the
#: same.
MOST_URGENT = """\
SELECT c.ctid FROM {tasks} AS c
        WHERE c.ctid = ANY (ARRAY(
            SELECT d.ctid FROM {tasks} AS d
            WHERE NOT d.picked AND d.state IS NULL AND d.lost_count = 0
                AND d.execution_time <= {now}
              AND {who}{kind}
            ORDER BY d.execution_time
            LIMIT {window}))
          AND CASE WHEN c.picked OR c.state IS NOT NULL THEN false
              ELSE c.execution_time <= {now} END
        ORDER BY -coalesce(c.priority, 50), c.execution_time"""
OLDEST = """\
SELECT d.ctid FROM {tasks} AS d
        WHERE NOT d.picked AND d.state IS NULL AND d.lost_count = 0 AND d.execution_time <= {now}
          AND {who}{kind}
        ORDER BY d.execution_time"""

#: Which rows a claim takes: one, or all of these names.
ONE = "d.task_name = ANY (%(names)s::text[]) AND d.task_instance = %(instance)s"
OF_NAMES = "(d.task_name IN (SELECT pg_catalog.unnest(%(names)s::text[]))) IS TRUE"
#: For every claim but that of a row which an operator runs. Evaluated once per statement, not per
#: row.
ALL_PAUSED = "\n          AND NOT EXISTS (SELECT FROM {meta} WHERE key = 'paused')"
HAS_SLOT = "\n          AND d.kind <> 'task'"
#: Names of one-time tasks that are paused now; they are few.
PAUSED_TASKS = """\
(SELECT p.task_name FROM {pauses} AS p
            WHERE p.scope = 'tasks' AND (p.until IS NULL OR p.until > {now}))"""
UNPAUSED = "\n          AND d.task_name NOT IN {paused_tasks}"
#: While many due slots of others lie in front: see ``Due``. Of a parameter that is null, an index
#: makes nothing.
SINCE = "\n          AND d.execution_time >= %(since)s::timestamptz"

DUE_NAMES = """\
(SELECT d.task_name, coalesce(d.priority, 50), d.execution_time FROM {tasks} AS d
 WHERE NOT d.picked AND d.state IS NULL AND d.kind <> 'task' AND d.execution_time <= {now}{since}
 ORDER BY d.execution_time LIMIT %(limit)s)
UNION ALL
(SELECT d.task_name, coalesce(d.priority, 50), d.execution_time FROM {tasks} AS d
 WHERE NOT d.picked AND d.state IS NULL AND d.lost_count > 0 AND d.execution_time <= {now}
 ORDER BY d.execution_time LIMIT %(limit)s)"""

# The first few slots of all names: cheaper than to send thousands of names, if the first slot is
# one of theirs.
FIRST_SLOTS = """\
(SELECT d.task_name,
    least(greatest(d.execution_time, {now} - interval '1 day'), timestamptz '9000-01-01Z') - {now}
 FROM {tasks} AS d
 WHERE NOT d.picked AND d.state IS NULL AND d.kind <> 'task' AND d.lost_count = 0{since}
   AND NOT EXISTS (SELECT FROM {meta} WHERE key = 'paused')
 ORDER BY d.execution_time LIMIT %(limit)s)
UNION ALL
(SELECT d.task_name,
    least(greatest(d.execution_time, {now} - interval '1 day'), timestamptz '9000-01-01Z') - {now}
 FROM {tasks} AS d
 WHERE NOT d.picked AND d.state IS NULL AND d.lost_count > 0
     AND NOT EXISTS (SELECT FROM {meta} WHERE key = 'paused'){unpaused}
 ORDER BY d.execution_time LIMIT %(lost)s)"""

# One descent into the index for each priority that is not known yet, none for the others: rows of
# other tasks, future rows, and dead entries before a cursor (queue_cursors.py) cost nothing. Nor do
# thousands of paused instances: pauses are looked up by name.
HEADS = """\
    WITH RECURSIVE heads AS (
        SELECT n.task_name, n.turn, n.last, n.since, CASE WHEN n.first = n.last THEN n.first
            ELSE (
            SELECT -coalesce(q.priority, 50) FROM {tasks} AS q
            WHERE q.task_name = n.task_name AND NOT q.picked AND q.state IS NULL
                AND q.kind = 'task'
              AND -coalesce(q.priority, 50) >= n.first AND -coalesce(q.priority, 50) <= n.last
            ORDER BY -coalesce(q.priority, 50) LIMIT 1) END AS rank
        FROM unnest(%(heads)s::text[], %(firsts)s::integer[], %(lasts)s::integer[],
            %(sinces)s::timestamptz[])
             WITH ORDINALITY AS n(task_name, first, last, since, turn)
        WHERE NOT EXISTS (SELECT FROM {meta} WHERE key = 'paused')
          AND NOT EXISTS (SELECT FROM {pauses} AS p
            WHERE p.task_name = n.task_name AND p.scope = 'tasks'
                AND (p.until IS NULL OR p.until > {now}))
        UNION ALL
        SELECT h.task_name, h.turn, h.last, h.since, (
            SELECT -coalesce(q.priority, 50) FROM {tasks} AS q
            WHERE q.task_name = h.task_name AND NOT q.picked AND q.state IS NULL
                AND q.kind = 'task'
              AND -coalesce(q.priority, 50) > h.rank AND -coalesce(q.priority, 50) <= h.last
            ORDER BY -coalesce(q.priority, 50) LIMIT 1)
        FROM heads AS h WHERE h.rank < h.last)"""

# The version's part is a SELECT so that it is computed once, and not for each row.
CLAIM_TASKS = """\
UPDATE {tasks} AS t
SET picked = true, picked_by = %(holder)s, last_heartbeat = {now}, lease = %(lease)s,
    version = greatest(least(t.version, {last_version}) + 1,
        (SELECT (extract(epoch FROM {now}) * 1000000.0)::bigint)),
    attempt = least(t.attempt, {last_attempt}) + 1
WHERE t.ctid = ANY (ARRAY(
    {heads}
    SELECT d.ctid FROM (SELECT task_name, rank, since FROM heads WHERE rank IS NOT NULL
        ORDER BY rank, turn) AS p
    CROSS JOIN LATERAL (
        SELECT w.ctid FROM {tasks} AS w
        WHERE w.task_name = p.task_name AND -coalesce(w.priority, 50) = p.rank AND NOT w.picked
            AND w.state IS NULL
          AND w.kind = 'task' AND w.lost_count = 0 AND w.execution_time <= {now}
          AND w.execution_time >= p.since
        ORDER BY w.execution_time
        LIMIT {most}
        FOR UPDATE SKIP LOCKED) AS d
    LIMIT %(limit)s))
  AND CASE WHEN t.picked OR t.state IS NOT NULL OR t.kind <> 'task' THEN false
           ELSE t.execution_time <= {now} AND t.task_name = ANY (%(tasks)s::text[]) END
RETURNING {task_columns}, {slots_are_due}"""

#: How many rows of a task CLAIM_TASKS takes, if some have few free places.
MOST = """\
least(%(limit)s::integer, (
            SELECT m.most
            FROM unnest(%(bounded)s::text[], %(most)s::integer[]) AS m(task_name, most)
            WHERE m.task_name = p.task_name))"""

#: Whether anything is due for the other claim, also of tasks unknown here: read once, at the ends
#: of two indexes.
SLOTS_ARE_DUE = """\
coalesce(
    (SELECT true FROM {tasks} AS d
     WHERE NOT d.picked AND d.state IS NULL AND d.kind <> 'task' AND d.execution_time <= {now}
     ORDER BY d.execution_time LIMIT 1),
    (SELECT true FROM {tasks} AS d
     WHERE NOT d.picked AND d.state IS NULL AND d.lost_count > 0
         AND d.execution_time <= {now}{unpaused}
     ORDER BY d.execution_time LIMIT 1),
    false)"""

# The names of ``own`` are in a CASE, which no index fits: a generic plan assumes ten names per
# array, and would read all their rows by the key. They are a subquery, and so a hash: ten
# thousand are not compared one by one. The second column says where the own slots begin, or now,
# if more than a window of due slots of others lie in front.
NEXT_DUE = """\
{heads}, own AS MATERIALIZED (
    SELECT d.execution_time AS due FROM {tasks} AS d
    WHERE NOT d.picked AND d.state IS NULL AND d.kind <> 'task'{since}
      AND CASE WHEN d.lost_count = 0
          THEN d.task_name IN (SELECT pg_catalog.unnest(%(names)s::text[])) ELSE false END
      AND NOT EXISTS (SELECT FROM {meta} WHERE key = 'paused')
    ORDER BY d.execution_time LIMIT 1
)
SELECT CASE WHEN pg_catalog.count(waiting.due) > 0 THEN
        least(greatest(pg_catalog.min(waiting.due), {now} - interval '1 day'),
            timestamptz '9000-01-01Z') - {now} END,
    {begin}
FROM (
    (SELECT d.execution_time FROM {tasks} AS d
     WHERE NOT d.picked AND d.state IS NULL AND d.lost_count > 0
       AND d.task_name = ANY (%(names)s::text[])
           AND NOT EXISTS (SELECT FROM {meta} WHERE key = 'paused'){unpaused}
     ORDER BY d.execution_time LIMIT %(lost)s)
    UNION ALL
    SELECT due FROM own
    UNION ALL
    (SELECT d.execution_time FROM heads AS p CROSS JOIN LATERAL (
        SELECT w.execution_time FROM {tasks} AS w
        WHERE w.task_name = p.task_name AND -coalesce(w.priority, 50) = p.rank AND NOT w.picked
            AND w.state IS NULL
          AND w.kind = 'task' AND w.lost_count = 0
        ORDER BY w.execution_time LIMIT 1) AS d)) AS waiting(due)"""

#: The second column of NEXT_DUE without a cursor. A window is read only if the first row of all
#: is one of others.
BEGIN_OF_OWN = """\
(SELECT f.due FROM (SELECT least((SELECT due FROM own), {now}) OFFSET 0) AS f(due)
    WHERE CASE WHEN f.due > (
        SELECT d.execution_time FROM {tasks} AS d WHERE NOT d.picked AND d.state IS NULL
            AND d.kind <> 'task'
        ORDER BY d.execution_time LIMIT 1) THEN f.due > (
        SELECT d.execution_time FROM {tasks} AS d WHERE NOT d.picked AND d.state IS NULL
            AND d.kind <> 'task'
        ORDER BY d.execution_time OFFSET {window} LIMIT 1) ELSE false END)"""

# Only the key finds the row: the other conditions are in a CASE, which no index fits. Else the
# planner uses the index of held rows, and searches all of this worker's for each of them.
_BY_KEY = """\
        SELECT q.ctid
        FROM unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[])
             AS i(task_name, task_instance, version)
        CROSS JOIN LATERAL (
            SELECT h.ctid FROM {tasks} AS h
            WHERE h.task_name = i.task_name AND h.task_instance = i.task_instance"""
FINISH = f"""\
WITH gone AS (
    DELETE FROM {{tasks}} AS t
    WHERE t.ctid = ANY (ARRAY(
{_BY_KEY}
              AND CASE WHEN h.picked AND h.version = i.version AND h.picked_by = %(holder)s
                       THEN h.state IS NULL AND h.wanted_due IS NULL
                           AND h.cancel_requested IS NULL
                       ELSE false END
            FOR UPDATE) AS q))
      AND CASE WHEN t.picked THEN t.picked_by = %(holder)s ELSE false END
    RETURNING 1)
SELECT pg_catalog.pg_current_xact_id()::text, pg_catalog.count(*) FROM gone"""

# Row and ledger row are found by key, one after the other, and written by place. Each value to
# check or to write may differ from row to row, or be the same for all.
ADVANCE = """\
WITH held AS MATERIALIZED (
    SELECT h.ctid AS place, e.ctid AS entry, i.*
    FROM unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[]{arrays})
        WITH ORDINALITY
         AS i(task_name, task_instance, version{changed}, turn)
    CROSS JOIN LATERAL (
        SELECT t.ctid FROM {tasks} AS t
        WHERE t.task_name = i.task_name AND t.task_instance = i.task_instance
          AND CASE WHEN t.picked AND t.version = i.version AND t.picked_by = %(holder)s
                   THEN t.kind = 'plan' AND t.slot = {slot} AND t.watermark = {slot}
                       AND t.schedule = {schedule}
                        AND ({next_slot} IS NULL OR {next_slot} > {now})
                        AND t.attempt = 1 AND t.lost_count = 0 AND t.collapsed = {collapsed}
                        AND t.origin IS NOT DISTINCT FROM {origin} AND {unasked}
                   ELSE false END
        FOR UPDATE SKIP LOCKED) AS h
    CROSS JOIN LATERAL (
        SELECT s.ctid FROM {slots} AS s
        WHERE s.task_name = i.task_name AND s.task_instance = i.task_instance AND s.slot = {slot}
          AND CASE WHEN s.token = i.version THEN s.finished IS NULL AND s.outcome = 'running'
              ELSE false END
        OFFSET 0) AS e
), gone AS (
    UPDATE {tasks} AS t
    SET picked = false, picked_by = NULL, last_heartbeat = NULL, lease = NULL,
        version = t.version + 1, attempt = 0,
        execution_time = {due}, slot = {next_slot}, next_slot = {after_next},
        origin = NULL, collapsed = 0,
        consecutive_failures = 0, last_success = {now}, last_error = NULL
    FROM held AS i
    WHERE t.ctid = ANY (ARRAY(SELECT place FROM held)) AND t.ctid = i.place
      AND t.version = i.version AND t.picked_by = %(holder)s
    RETURNING i.entry, i.turn
), told AS (
    UPDATE {slots} AS s
    SET outcome = 'succeeded', reason = NULL, error = NULL, attempts = 1, finished = {now}
    WHERE s.ctid = ANY (ARRAY(SELECT entry FROM gone)) AND s.finished IS NULL
        AND s.outcome = 'running'
    RETURNING 1)
SELECT pg_catalog.pg_current_xact_id()::text, (SELECT pg_catalog.count(*) FROM told),
    ARRAY(SELECT turn FROM gone)"""

HOLD = """\
SELECT {now}, pg_catalog.pg_current_xact_id()::text, {q_columns}
FROM unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[], %(holders)s::text[])
     AS i(task_name, task_instance, version, holder)
CROSS JOIN LATERAL (
    SELECT h.* FROM {tasks} AS h
    WHERE h.task_name = i.task_name AND h.task_instance = i.task_instance
      AND CASE WHEN h.picked AND h.version = i.version THEN h.picked_by = i.holder ELSE false END
    FOR UPDATE{skip}) AS q"""

# The rows that this transaction holds, or has claimed.
_OWN = """\
WITH held AS MATERIALIZED (
    SELECT h.ctid AS place, i.*
    FROM unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[],
        %(holders)s::text[]{arrays})
         AS i(task_name, task_instance, version, holder{changed})
    CROSS JOIN LATERAL (
        SELECT t.ctid FROM {tasks} AS t
        WHERE t.task_name = i.task_name AND t.task_instance = i.task_instance
          AND CASE WHEN t.version = i.version THEN t.picked_by = i.holder ELSE false END
        OFFSET 0) AS h
)"""
_IS_OWN = """\
t.ctid = ANY (ARRAY(SELECT place FROM held)) AND t.ctid = i.place
  AND t.version = i.version AND t.picked_by = i.holder"""
REMOVE = f"{_OWN}\nDELETE FROM {{tasks}} AS t USING held AS i\nWHERE {_IS_OWN}"
RELEASE = f"""\
{_OWN}
UPDATE {{tasks}} AS t
SET picked = false, picked_by = NULL, last_heartbeat = NULL, lease = NULL,
    cancel_requested = NULL, wanted_due = NULL, marked = NULL,
    version = least(t.version, {{last_version}} + 1) + 1, {{sets}}
FROM held AS i
WHERE {_IS_OWN}"""

# Renew claims, or mark tasks that give up as started. The last condition is in a CASE, as in
# FINISH: else each mark would read all rows that this worker holds.
BEAT = f"""\
UPDATE {{tasks}} AS t
SET {{column}} = {{now}}
WHERE t.ctid = ANY (ARRAY(
{_BY_KEY}
              AND CASE WHEN h.picked AND h.version = i.version
                  THEN h.picked_by = %(holder)s{{unmarked}} ELSE false END
            FOR NO KEY UPDATE{{skip}}) AS q))
  AND CASE WHEN t.picked THEN t.picked_by = %(holder)s ELSE false END
RETURNING t.task_name, t.task_instance, t.version{{durably}}"""

# Race: the server may crash right after the mark. Where synchronous_commit is off, the mark's
# transaction turns it on; its flush also covers the claim, which was written before. Other levels
# are the admin's choice and stay.
DURABLY = """\
CASE pg_catalog.current_setting('synchronous_commit') WHEN 'off'
    THEN pg_catalog.set_config('synchronous_commit', 'on', true) END"""
MARK = f"""\
UPDATE {{slots}} AS s SET outcome = 'running', started = {{now}}
WHERE s.task_name = %(name)s AND s.task_instance = %(instance)s AND s.slot = %(slot)s
  AND s.token = %(token)s AND s.worker = %(holder)s AND s.outcome = 'claimed'
RETURNING {DURABLY}"""

ENTRIES = """\
SELECT l.task_name, l.task_instance, l.slot, l.outcome, l.token, l.finished IS NOT NULL,
    l.aborted,
    l.started
FROM unnest(%(names)s::text[], %(instances)s::text[], %(slots)s::timestamptz[])
    AS i(task_name, task_instance, slot)
CROSS JOIN LATERAL (
    SELECT e.* FROM {slots} AS e
    WHERE e.task_name = i.task_name AND e.task_instance = i.task_instance AND e.slot = i.slot
    {lock}) AS l"""

# Found by key, and written by place.
RECORD = """\
WITH known AS MATERIALIZED (
    SELECT e.ctid AS place, i.*
    FROM unnest(%(names)s::text[], %(instances)s::text[], %(slots)s::timestamptz[],
        %(tokens)s::bigint[]{arrays})
         AS i(task_name, task_instance, slot, token{changed})
    CROSS JOIN LATERAL (
        SELECT s.ctid FROM {slots} AS s
        WHERE s.task_name = i.task_name AND s.task_instance = i.task_instance AND s.slot = i.slot
          AND CASE WHEN s.token = i.token THEN s.finished IS NULL ELSE false END
        OFFSET 0) AS e
)
UPDATE {slots} AS s
SET {sets}
FROM known AS i
WHERE s.ctid = ANY (ARRAY(SELECT place FROM known)) AND s.ctid = i.place
  AND s.token = i.token AND s.finished IS NULL"""

# The newest decided slot of each plan row that has missed slots: one descent into ledger and gaps
# for each.
NEWEST = """\
SELECT greatest(
    (SELECT s.slot FROM {slots} AS s
     WHERE s.task_name = i.task_name AND s.task_instance = i.task_instance
         AND s.origin IN ('schedule', 'catch_up')
       AND (s.finished IS NOT NULL OR s.outcome <> 'claimed'
           AND i.task_name = ANY (%(strict)s::text[]))
     ORDER BY s.slot DESC LIMIT 1),
    (SELECT g.last_slot FROM {gaps} AS g
     WHERE g.task_name = i.task_name AND g.task_instance = i.task_instance
     ORDER BY g.first_slot DESC LIMIT 1))
FROM unnest(%(names)s::text[], %(instances)s::text[]) WITH ORDINALITY
    AS i(task_name, task_instance, turn)
ORDER BY i.turn"""

# Write the decided slots on the rows that this transaction has claimed, and enter them into the
# ledger as CLAIM does. A slot's start is the time of its claim.
ENTER = f"""\
{_OWN}, begun AS (
    UPDATE {{tasks}} AS t
    SET {{sets}}
    FROM held AS i
    WHERE {_IS_OWN}
    RETURNING t.*
), ledger AS (
{_enter("begun", "%(claimed_at)s::timestamptz")}
)
SELECT b.count, l.task_name, l.task_instance, l.slot
FROM (SELECT pg_catalog.count(*) FROM begun) AS b LEFT JOIN ledger AS l ON true"""

# A ledger row for a single slot that will not run, a gap row for several. The job's last gap goes
# on if it ends with the slot before (``after``), has the same reason, and no slot of an earlier
# schedule lies between. Gaps with open slots are new, and returned: those are ended one by one,
# which may wait for locks. Not by an EXISTS: the planner might turn it into a join.
GAPS = """\
WITH found AS MATERIALIZED (
    SELECT i.*, o.is_open, coalesce(b.first_slot, i.first_slot) AS begin,
        coalesce(b.count, 0) + i.count AS total
    FROM unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[],
        %(holders)s::text[],
                %(firsts)s::timestamptz[], %(lasts)s::timestamptz[], %(counts)s::bigint[],
                    %(reasons)s::text[],
                %(afters)s::timestamptz[])
         WITH ORDINALITY
         AS i(task_name, task_instance, version, holder, first_slot, last_slot, count, reason,
             after, turn)
    CROSS JOIN LATERAL (SELECT (
        SELECT true FROM {slots} AS s
        WHERE s.task_name = i.task_name AND s.task_instance = i.task_instance
          AND s.slot >= i.first_slot AND s.slot <= i.last_slot
          AND CASE WHEN s.finished IS NULL THEN s.token <> i.version
              OR s.worker <> coalesce(i.holder, '')
                   ELSE false END
        LIMIT 1) AS is_open) AS o
    LEFT JOIN LATERAL (
        SELECT n.first_slot, n.count FROM (
            SELECT g.first_slot, g.last_slot, g.count, g.reason FROM {gaps} AS g
            WHERE g.task_name = i.task_name AND g.task_instance = i.task_instance
            ORDER BY g.first_slot DESC LIMIT 1) AS n
        WHERE n.last_slot = i.after AND n.reason = i.reason AND i.count > 1 AND o.is_open IS NULL
          AND (SELECT true FROM {slots} AS s
               WHERE s.task_name = i.task_name AND s.task_instance = i.task_instance
                 AND s.slot > n.last_slot AND s.slot < i.first_slot
               LIMIT 1) IS NULL) AS b ON true
), skipped AS (
    INSERT INTO {slots} (task_name, task_instance, slot, outcome, reason, finished)
    SELECT task_name, task_instance, first_slot, 'skipped', reason, %(at)s::timestamptz FROM found
        WHERE count = 1
    ON CONFLICT DO NOTHING
), entered AS (
    INSERT INTO {gaps} AS g (task_name, task_instance, first_slot, last_slot, count, reason,
        created)
    SELECT DISTINCT ON (task_name, task_instance, begin)
        task_name, task_instance, begin, last_slot, total, reason, %(at)s::timestamptz
    FROM found WHERE count > 1
    ORDER BY task_name, task_instance, begin, last_slot DESC
    ON CONFLICT (task_name, task_instance, first_slot) DO UPDATE
    SET last_slot = excluded.last_slot, count = excluded.count, reason = excluded.reason,
        created = excluded.created
    WHERE excluded.last_slot > g.last_slot
)
SELECT turn FROM found WHERE is_open"""


def _of(alias: str, names: Iterable[str], **instead: str) -> str:
    """A list of columns; a document is read as text."""
    instead["pending"] = f"{alias}.pending::text"
    return ", ".join(instead.get(name, f"{alias}.{name}") for name in names)


#: Columns of a held plan row that are empty as long as it runs one slot, and nobody has asked
#: anything of it.
_UNASKED = (
    "pending",
    "state",
    "cancel_requested",
    "wanted_due",
    "parked_due",
    "control",
)
#: Parts by which statements name what several have.
PARTS = {
    "columns": ", ".join(f"t.{name}" for name in ROW_COLUMNS),
    # A settlement does not need the payload, which may be large.
    "q_columns": _of("q", ROW_COLUMNS, task_data="NULL::bytea"),
    "slot_columns": ", ".join(SLOT_COLUMNS),
    "task_columns": ", ".join(TASK_COLUMNS),
    "last_version": str(LAST_VERSION),
    "last_attempt": str(LAST_ATTEMPT),
    "window": str(WINDOW),
    "unasked": " AND ".join(f"t.{name} IS NULL" for name in _UNASKED),
    "all_paused": ALL_PAUSED,
    "paused_tasks": PAUSED_TASKS,
    "unpaused": UNPAUSED,
    "heads": HEADS,
    "slots_are_due": SLOTS_ARE_DUE,
    "begin_of_own": BEGIN_OF_OWN,
}
