"""PostgreSQL's statements about the ledger, as text: mark, look, write an end, decide late slots, enter gaps.

Of a whole batch in one statement each. Rows are found by key in a join that is LATERAL, and written by place: no plan
to choose.
"""

from __future__ import annotations

# Race: the server may crash right after the mark. Where synchronous_commit is off, the mark's transaction turns it on;
# its flush also covers the claim, which was written before. Other levels are the admin's choice and stay.
MARK = """\
UPDATE {slots} AS s SET outcome = 'running', started = {now}
WHERE s.task_name = %(name)s AND s.task_instance = %(instance)s AND s.slot = %(slot)s
  AND s.token = %(token)s AND s.worker = %(holder)s AND s.outcome = 'claimed'
RETURNING CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END"""

ENTRIES = """\
SELECT l.ctid::text, l.task_name, l.task_instance, l.slot, l.outcome, l.token, l.finished IS NOT NULL, l.aborted,
    l.started
FROM unnest(%(names)s::text[], %(instances)s::text[], %(slots)s::timestamptz[]) AS i(task_name, task_instance, slot)
CROSS JOIN LATERAL (
    SELECT e.ctid, e.* FROM {slots} AS e
    WHERE e.task_name = i.task_name AND e.task_instance = i.task_instance AND e.slot = i.slot
    {lock}) AS l"""

RECORD = """\
UPDATE {slots} AS s
SET {sets}
FROM unnest(%(names)s::text[], %(instances)s::text[], %(slots)s::timestamptz[], %(tokens)s::bigint[]{arrays})
     AS i(task_name, task_instance, slot, token{changed})
WHERE s.ctid = ANY (%(places)s::text[]::tid[])
  AND s.task_name = i.task_name AND s.task_instance = i.task_instance AND s.slot = i.slot
  AND s.token = i.token AND s.finished IS NULL"""

FORGET = """\
DELETE FROM {slots} AS s
USING unnest(%(names)s::text[], %(instances)s::text[], %(slots)s::timestamptz[], %(tokens)s::bigint[])
     AS i(task_name, task_instance, slot, token)
WHERE s.ctid = ANY (%(places)s::text[]::tid[])
  AND s.task_name = i.task_name AND s.task_instance = i.task_instance AND s.slot = i.slot
  AND s.token = i.token AND s.finished IS NULL AND s.attempts <= 1 AND s.lost = 0 AND s.aborted = 0"""

# What ledger and gaps know of each plan row that has missed slots: one descent into either for each.
NEWEST = """\
SELECT greatest(
    (SELECT s.slot FROM {slots} AS s
     WHERE s.task_name = i.task_name AND s.task_instance = i.task_instance AND s.origin IN ('schedule', 'catch_up')
       AND (s.finished IS NOT NULL OR s.outcome <> 'claimed' AND i.task_name = ANY (%(strict)s::text[]))
     ORDER BY s.slot DESC LIMIT 1),
    (SELECT g.last_slot FROM {gaps} AS g
     WHERE g.task_name = i.task_name AND g.task_instance = i.task_instance
     ORDER BY g.first_slot DESC LIMIT 1))
FROM unnest(%(names)s::text[], %(instances)s::text[]) WITH ORDINALITY AS i(task_name, task_instance, turn)
ORDER BY i.turn"""

# The slots that were decided, on the rows that this very transaction has claimed, and in the ledger as CLAIM enters
# them. A slot's start is when it was claimed.
BEGIN = """\
WITH held AS MATERIALIZED (
    SELECT h.ctid AS place, i.*
    FROM unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[]{arrays})
         AS i(task_name, task_instance, version{changed})
    CROSS JOIN LATERAL (
        SELECT t.ctid FROM {tasks} AS t
        WHERE t.task_name = i.task_name AND t.task_instance = i.task_instance
          AND CASE WHEN t.version = i.version THEN t.picked_by = %(holder)s ELSE false END
        OFFSET 0) AS h
), begun AS (
    UPDATE {tasks} AS t
    SET {sets}
    FROM held AS i
    WHERE t.ctid = ANY (ARRAY(SELECT place FROM held)) AND t.ctid = i.place
      AND t.version = i.version AND t.picked_by = %(holder)s
    RETURNING t.*
), ledger AS (
    INSERT INTO {slots} AS s
        (task_name, task_instance, slot, outcome, origin, attempts, collapsed, token, worker, started)
    SELECT task_name, task_instance, slot,
        CASE WHEN task_name = ANY (%(strict)s::text[]) THEN 'claimed' ELSE 'running' END,
        coalesce(origin, 'schedule'), attempt, collapsed, version, picked_by,
        CASE WHEN task_name = ANY (%(strict)s::text[]) THEN NULL ELSE %(claimed_at)s::timestamptz END
    FROM begun
    {again}
    RETURNING s.task_name, s.task_instance
)
SELECT b.count, l.task_name, l.task_instance
FROM (SELECT count(*) FROM begun) AS b LEFT JOIN ledger AS l ON true"""

# A ledger row for a single slot that will not run, a gap row for several. Those that hold open slots come back: they
# are ended one by one, for that waits for whoever has them locked. Not by an EXISTS: it might be made a join.
GAPS = """\
WITH found AS MATERIALIZED (
    SELECT i.*
    FROM unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[], %(holders)s::text[],
                %(firsts)s::timestamptz[], %(lasts)s::timestamptz[], %(counts)s::bigint[], %(reasons)s::text[])
         WITH ORDINALITY AS i(task_name, task_instance, version, holder, first_slot, last_slot, count, reason, turn)
), skipped AS (
    INSERT INTO {slots} (task_name, task_instance, slot, outcome, reason, finished)
    SELECT task_name, task_instance, first_slot, 'skipped', reason, %(at)s::timestamptz FROM found WHERE count = 1
    ON CONFLICT DO NOTHING
), entered AS (
    INSERT INTO {gaps} AS g (task_name, task_instance, first_slot, last_slot, count, reason, created)
    SELECT DISTINCT ON (task_name, task_instance, first_slot)
        task_name, task_instance, first_slot, last_slot, count, reason, %(at)s::timestamptz
    FROM found WHERE count > 1
    ORDER BY task_name, task_instance, first_slot, last_slot DESC
    ON CONFLICT (task_name, task_instance, first_slot) DO UPDATE
    SET last_slot = excluded.last_slot, count = excluded.count, reason = excluded.reason, created = excluded.created
    WHERE excluded.last_slot > g.last_slot
)
SELECT i.turn FROM found AS i WHERE (
    SELECT true FROM {slots} AS s
    WHERE s.task_name = i.task_name AND s.task_instance = i.task_instance
      AND s.slot >= i.first_slot AND s.slot <= i.last_slot
      AND CASE WHEN s.finished IS NULL THEN s.token <> i.version OR s.worker <> coalesce(i.holder, '') ELSE false END
    LIMIT 1)"""
