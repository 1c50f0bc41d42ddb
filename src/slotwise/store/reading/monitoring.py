"""Figures for monitoring: what is due of each name, and how long ago jobs have succeeded."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import sqlalchemy as sa

from slotwise.decide.overdue import overdue_since
from slotwise.model.records import FOREVER, from_micros
from slotwise.model.values import Value
from slotwise.model.vocabulary import Reason, RowState
from slotwise.schedules import Disabled
from slotwise.schedules.text import readable
from slotwise.store.operations.job_operations import all_paused
from slotwise.store.reading.queries import ReadTransaction, reading
from slotwise.store.reading.task_counts import MOST, MOST_NAMES
from slotwise.store.schema.rows import filled, utc
from slotwise.store.schema.tables import IS_TASK, RANK
from slotwise.store.slots.store import Store

_NONE = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog(Value):
    """Due rows of one name that are not claimed. ``waiting`` is exact up to ``MOST``, a lower
    bound above it.

    ``oldest``: how long the oldest of these rows has been due.
    """

    name: str
    waiting: int
    oldest: timedelta


#: The oldest due slots, by name.
_SLOTS = """
SELECT task_name, {f}count(*) AS count, {f}min(execution_time) AS execution_time
FROM (SELECT task_name, execution_time FROM {tasks}
      WHERE NOT picked AND state IS NULL AND {has_slot} AND execution_time <= :now
      ORDER BY execution_time LIMIT :most) AS oldest
GROUP BY task_name"""
#: Due tasks by name and priority, which lead the queue's index. The first row of an order is read,
#: not a minimum, for which PostgreSQL might read the whole table.
_TASKS = """
WITH RECURSIVE names (name) AS (
    SELECT (SELECT task_name FROM {tasks} WHERE {waits} ORDER BY task_name LIMIT 1)
    UNION ALL
    SELECT (SELECT task_name FROM {tasks} WHERE {waits} AND task_name > names.name
            ORDER BY task_name LIMIT 1)
    FROM names WHERE names.name IS NOT NULL
), heads (name, rank) AS (
    SELECT names.name, (SELECT {rank} FROM {tasks} WHERE {waits} AND task_name = names.name
                        ORDER BY {rank} LIMIT 1)
    FROM names WHERE names.name IS NOT NULL
    UNION ALL
    SELECT heads.name, (SELECT {rank} FROM {tasks}
                        WHERE {waits} AND task_name = heads.name AND {rank} > heads.rank
                        ORDER BY {rank} LIMIT 1)
    FROM heads WHERE heads.rank IS NOT NULL
)
SELECT heads.name AS task_name,
       (SELECT {f}count(*) FROM (SELECT 1 FROM {tasks} WHERE {due} LIMIT :most) AS counted)
           AS count,
       (SELECT execution_time FROM {tasks} WHERE {due} ORDER BY execution_time LIMIT 1)
           AS execution_time
FROM heads WHERE heads.rank IS NOT NULL"""
#: The same by the columns of MariaDB's index. There, a query in FROM cannot name an outer row.
_ON_MYSQL = _TASKS.replace("{waits}", "due_task IS NOT NULL").replace(
    "(SELECT 1 FROM {tasks} WHERE {due} LIMIT :most) AS counted",
    "{tasks} WHERE {due} AND due_task <= :now",
)
_ON_MYSQL = _ON_MYSQL.replace("{rank}", "priority_rank")
_WAITS = f"NOT picked AND state IS NULL AND {IS_TASK}"
_DUE = f"{_WAITS} AND task_name = heads.name AND {RANK} = heads.rank AND execution_time <= :now"


def backlog(store: Store) -> list[Backlog]:
    """Return the due rows of each job and task, by name. Of the jobs' slots together, the oldest
    ``MOST`` count.
    """
    with reading(store) as at:
        now = at.now()
        given = {"now": now, "most": MOST + 1}
        slots = at.read(_SLOTS, given)
        text = _ON_MYSQL if store.database.dialect_name == "mysql" else _TASKS
        tasks = at.read(text, given, waits=_WAITS, due=_DUE)
    found = dict[str, Backlog]()
    for row in [*slots, *tasks]:
        if row["count"]:
            name = row["task_name"]
            known = found.get(name, Backlog(name=name, waiting=0, oldest=_NONE))
            found[name] = Backlog(
                name=name,
                waiting=min(known.waiting + row["count"], MOST),
                oldest=max(known.oldest, now - utc(row["execution_time"])),
            )
    return [one for _, one in sorted(found.items())]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinceSuccess(Value):
    """How long ago a job succeeded, ``since`` its planning if it never has; of several instances,
    the one that waits the longest.

    ``overdue``: how long ago the first slot was due that should have succeeded since; zero if all
    is well, and while the job is paused.
    """

    since: timedelta
    overdue: timedelta

    def worse(self, other: SinceSuccess) -> SinceSuccess:
        """Return the longer time of each."""
        since = max(self.since, other.since)
        return SinceSuccess(since=since, overdue=max(self.overdue, other.overdue))


#: Jobs by schedule, and by whether they are failing: the oldest last success, the first planning of
#: those without one, and the oldest due slot that has not ended.
_STANDING = """
SELECT task_name, schedule, is_failing, {f}min(last_success) AS last_success,
       {f}min(CASE WHEN last_success IS NULL THEN created_version END) AS created_version,
       {f}min(CASE WHEN slot <= :now AND is_awake = 1 THEN slot END) AS slot
FROM (SELECT *, CASE WHEN coalesce(consecutive_failures, 0) > 0 AND {awake} THEN 1 ELSE 0 END
                    AS is_failing,
             CASE WHEN {awake} THEN 1 ELSE 0 END AS is_awake
      FROM {tasks} WHERE kind = 'plan' AND {named} AND schedule <> :disabled
          AND (state IS NOT NULL OR execution_time < :forever)) AS plans
GROUP BY task_name, schedule, is_failing"""
_AWAKE = f"(state IS NULL OR state <> '{RowState.PAUSED}')"
#: The oldest slots that were skipped after the last success, in gaps and in the ledger.
_SKIPPED = """
SELECT task_name, {f}min(first_slot) AS first_slot
FROM (SELECT t.task_name, g.first_slot FROM {tasks} AS t JOIN {gaps} AS g
          ON g.task_name = t.task_name AND g.task_instance = t.task_instance
      WHERE {mine} AND g.last_slot >= :recent AND g.reason NOT IN :requested
          AND (t.last_success IS NULL OR g.last_slot > t.last_success)
      UNION ALL
      SELECT t.task_name, s.slot FROM {tasks} AS t JOIN {slots} AS s
          ON s.task_name = t.task_name AND s.task_instance = t.task_instance
      WHERE {mine} AND s.slot >= :recent AND s.outcome = 'skipped'
          AND s.reason NOT IN :requested
          AND (t.last_success IS NULL OR s.slot > t.last_success)) AS skipped
GROUP BY task_name"""
_MINE = "t.task_name IN :names AND t.kind = 'plan' AND t.state IS NULL"
#: Why a slot does not run that nobody expects any more.
_REQUESTED = [
    str(reason)
    for reason in (
        Reason.COLLAPSED,
        Reason.CALENDAR,
        Reason.PAUSED,
        Reason.SUPERSEDED,
        Reason.SETTLED,
        Reason.DELETED,
        Reason.OPERATOR,
        Reason.MAINTENANCE,
    )
]
#: Names in one statement.
_NAMES_AT_ONCE = 10_000
#: Older skipped slots are not searched.
_RECENT = timedelta(days=35)


def since_success(
    store: Store, jobs: Collection[str] | None = None
) -> dict[str, SinceSuccess]:
    """Return this of each of these jobs, or of all, whose schedule has further slots, or whose
    instances' have.
    """
    with reading(store) as at:
        now = at.now()
        rows = _standing(at, jobs, now)
        skipped = _skipped(at, _with_slots_since(rows, now), now)
        is_paused = all_paused(at.connection, at.tables) is not None
    found = _by_name(rows, skipped, now)
    if is_paused:
        return {name: replace(one, overdue=_NONE) for name, one in found.items()}
    return found


def _by_name(
    rows: Sequence[sa.RowMapping], skipped: Mapping[str, datetime], now: datetime
) -> dict[str, SinceSuccess]:
    found = dict[str, SinceSuccess]()
    for row in rows:
        name = row["task_name"]
        one = _since(row, skipped.get(name), now)
        found[name] = one.worse(found.get(name, one))
    return found


def _standing(
    at: ReadTransaction, jobs: Collection[str] | None, now: datetime
) -> list[sa.RowMapping]:
    """Return the rows that have a success or a planning: those of another program have none."""
    given = {"now": now, "disabled": str(Disabled()), "forever": FOREVER}
    found = list[sa.RowMapping]()
    for names in _shares(jobs):
        named = "1 = 1" if names is None else "task_name IN :names"
        mine = {**given, "names": names}
        found += at.read(_STANDING, mine, awake=_AWAKE, named=named)
    return [row for row in found if row["last_success"] or row["created_version"]]


def _shares(names: Collection[str] | None) -> Iterator[list[str] | None]:
    """Yield these names in lists that fit into a statement; None for all names."""
    if names is None:
        yield None
        return
    ordered = sorted(names)
    for first in range(0, len(ordered), _NAMES_AT_ONCE):
        yield ordered[first : first + _NAMES_AT_ONCE]


def _with_slots_since(rows: Sequence[sa.RowMapping], now: datetime) -> set[str]:
    """Return the jobs whose schedule has had a slot since they succeeded: few, on most days."""
    found = set()
    for row in rows:
        schedule = readable(row["schedule"])
        following = None if schedule is None else schedule.next_after(_oldest(row))
        if following is not None and following < now:
            found.add(row["task_name"])
    return found


def _skipped(
    at: ReadTransaction, names: Collection[str], now: datetime
) -> dict[str, datetime]:
    """Return the oldest slots of these jobs that were skipped since they succeeded."""
    given = {"recent": now - _RECENT, "requested": _REQUESTED}
    found = dict[str, datetime]()
    for share in _shares(names):
        for row in at.read(_SKIPPED, {**given, "names": share}, mine=_MINE):
            found[row["task_name"]] = utc(row["first_slot"])
    return found


def _oldest(row: sa.RowMapping) -> datetime:
    """Return the oldest success or planning."""
    instants: list[datetime] = (
        [utc(row["last_success"])] if row["last_success"] else []
    )
    if row["created_version"]:
        instants.append(from_micros(row["created_version"]))
    return min(instants)


def _since(
    row: sa.RowMapping, skipped: datetime | None, now: datetime
) -> SinceSuccess:
    since = _oldest(row)
    first = overdue_since(
        readable(row["schedule"]),
        since=since,
        is_failing=bool(row["is_failing"]),
        undecided=utc(row["slot"]) if row["slot"] else None,
        skipped=skipped,
        now=now,
    )
    overdue = _NONE if first is None else now - first
    return SinceSuccess(since=max(now - since, _NONE), overdue=overdue)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble(Value):
    """Rows of one name that need a person: how many are ``dead``, and how many jobs or instances
    are ``failing``, with the most failures ``in_a_row`` and the last one.

    ``paused``: how long the first of them has been paused; None if none is.
    """

    name: str
    dead: int = 0
    failing: int = 0
    in_a_row: int = 0
    last_failure: datetime | None = None
    paused: timedelta | None = None


_TROUBLES = (
    """
SELECT task_name, {f}count(*) AS dead FROM {tasks} WHERE state = 'dead'
GROUP BY task_name ORDER BY task_name LIMIT :most""",
    """
SELECT task_name, {f}count(*) AS failing, {f}max(consecutive_failures) AS in_a_row,
       {f}max(last_failure) AS last_failure
FROM {tasks} WHERE kind = 'plan' AND consecutive_failures > 0
GROUP BY task_name ORDER BY task_name LIMIT :most""",
    """
SELECT task_name, {f}min(created) AS at FROM {pauses} WHERE task_name <> ''
GROUP BY task_name ORDER BY task_name LIMIT :most""",
)


def troubles(store: Store) -> list[Trouble]:
    """Return the names with dead, failing or paused rows, at most ``MOST_NAMES`` of each."""
    found = dict[str, dict[str, object]]()
    with reading(store) as at:
        now = at.now()
        for text in _TROUBLES:
            for row in at.read(text, {"most": MOST_NAMES}):
                found.setdefault(row["task_name"], {}).update(row)
    return [_trouble(name, facts, now) for name, facts in sorted(found.items())]


def _trouble(name: str, facts: Mapping[str, object], now: datetime) -> Trouble:
    since = utc(facts.get("at"))
    paused = None if since is None else max(now - since, _NONE)
    return filled(Trouble, facts, name=name, paused=paused)
