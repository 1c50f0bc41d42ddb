"""Slots of a job: those that have not ended, the ledger with its gaps, and the attempts of each."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import TypeAlias

import sqlalchemy as sa

from slotwise.model.records import RECURRING, Key
from slotwise.model.values import Value
from slotwise.model.vocabulary import Origin, Outcome, Reason, RowState, SlotState
from slotwise.store.reading.progress import progress_of, told
from slotwise.store.reading.queries import (
    NO_LIMIT,
    ReadTransaction,
    paged,
    read,
    reading,
)
from slotwise.store.schema.rows import filled, utc
from slotwise.store.slots.store import Store

#: The place of a line in a listing: by instant, a slot before a gap that ends with it, then by
#: instance.
_Place: TypeAlias = tuple[datetime, int, str]
#: Instance and slot in the ledger.
_SlotKey: TypeAlias = tuple[str, datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotInfo(Value):
    """A slot in the ledger; or a gap: then ``count`` slots from ``slot`` to ``last`` did not run.
    ``run_since`` of them are listed separately, since a backfill has run them.

    ``outcome`` is also ``waiting``: for the slot that comes next, or for one that waits for its
    retry. ``lost_by``: the worker from which the slot was taken over last, silent since
    ``silent_since``. ``done``, ``total`` and ``rate``, a second, are those of the checkpoint of a
    slot that runs.
    """

    slot: datetime
    last: datetime | None = None
    count: int = 1
    run_since: int = 0
    outcome: str
    reason: str | None = None
    origin: str | None = None
    attempts: int = 0
    missed_count: int = 0
    worker: str | None = None
    token: int | None = None
    started: datetime | None = None
    finished: datetime | None = None
    took: timedelta | None = None
    due: datetime | None = None
    error: str | None = None
    id: str = RECURRING
    lost_by: str | None = None
    silent_since: datetime | None = None
    done: int | None = None
    total: int | None = None
    rate: float | None = None

    @property
    def progress(self) -> str | None:
        """How much is done, as a line; None unless a checkpoint says it."""
        return None if self.done is None else told(self.done, self.total, self.rate)

    @property
    def place(self) -> datetime:
        """The instant by which listings are ordered: of a gap, its last slot."""
        return self.last or self.slot


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptInfo(Value):
    """An attempt of a slot or of a one-time task. ``outcome`` is also ``aborted``, ``snoozed``, or
    ``running``.

    ``ended`` is when its handler ended, or when its worker was last heard of. ``error`` is the
    whole traceback.
    """

    number: int
    outcome: str
    reason: str | None = None
    worker: str | None = None
    token: int | None = None
    claimed: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    error: str | None = None


# -- slots that have not ended --------------------------------------------------------------------

#: Slots that wait, run or are parked, each by an index: of 100,000 instances few are read.
_PARTS = (
    "task_instance = :own",
    "NOT picked AND state IS NULL ORDER BY execution_time",
    "picked ORDER BY slot",
    "NOT picked AND state = 'paused' ORDER BY task_instance",
    "NOT picked AND state = 'queued' ORDER BY task_instance",
)
_PART = """
SELECT * FROM (SELECT {{columns}} FROM {{tasks}} WHERE {{mine}} AND {} LIMIT :limit) AS part"""
_UNENDED = " UNION ALL ".join(map(_PART.format, _PARTS))
_COLUMNS = """task_instance, plan_instance, slot, state, picked, attempt, origin, collapsed,
parked_due, execution_time, last_error"""


def unended(
    store: Store,
    name: str,
    instance: str | None = None,
    *,
    limit: int | None = None,
    since: datetime | None = None,
) -> list[SlotInfo]:
    """Return slots that have not ended: those that wait (next slot, triggers, retries), then those
    that run.

    Each the latest first. A slot that waits for a retry is one line, with what the ledger says of
    the last attempt. Of more than ``limit``: the schedule's next, what runs, and what comes next;
    of paused ones, the first by instance; queued slots are last. ``since`` is the earliest
    instant.
    """
    own = instance or RECURRING
    given = {"name": name, "own": own, "since": since, "limit": limit or NO_LIMIT}
    mine = _of_job(is_one=instance is not None, has_start=since is not None)
    with reading(store) as at:
        found = at.read(_UNENDED, given, mine=mine, columns=_COLUMNS)
        each = {row["task_instance"]: row for row in found}.values()
        chosen = sorted(each, key=lambda row: _turn(row, own))[:limit]
        begun = _begun(at, name, [_key(row) for row in chosen])
    chosen.sort(key=lambda row: (utc(row["slot"]), row["task_instance"]), reverse=True)
    waiting = []
    running = []
    for row in chosen:
        line = begun.get(_key(row))
        if not row["picked"]:
            waiting.append(_waiting_info(row, line))
        elif line is not None:
            running.append(line)
    return waiting + running


def _of_job(*, is_one: bool, has_start: bool) -> str:
    mine = "task_name = :name AND slot IS NOT NULL AND kind <> 'task'"
    if is_one:
        mine += " AND (task_instance = :own OR plan_instance = :own)"
    if has_start:
        mine += " AND slot >= :since"
    return mine


def _turn(row: sa.RowMapping, own: str) -> tuple[bool, bool, bool, datetime, str]:
    """The sort key of slots that have not ended; ``own`` is the instance of the requested plan."""
    is_own = row["task_instance"] == own
    is_queued = row["state"] == RowState.QUEUED
    return (
        not is_own,
        not row["picked"],
        is_queued,
        utc(row["slot"]),
        row["task_instance"],
    )


def _key(row: sa.RowMapping) -> _SlotKey:
    return row["plan_instance"] or row["task_instance"], utc(row["slot"])


def _begun(
    at: ReadTransaction, name: str, keys: Sequence[_SlotKey]
) -> dict[_SlotKey, SlotInfo]:
    """Return what the ledger has of these slots."""
    found = dict[_SlotKey, SlotInfo]()
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        given = {
            "name": name,
            "ids": sorted({id for id, _ in some}),
            "slots": sorted({slot for _, slot in some}),
        }
        where = "s.task_instance IN :ids AND s.slot IN :slots"
        for line in entries(at, where, given):
            found[line.id, line.slot] = line
    return found


# -- the ledger with its gaps ---------------------------------------------------------------------

_AT_ONCE = 500
#: Rows of the ledger, with the worker from which a slot was taken over last, and since when that
#: is silent.
_ENTRIES = """
SELECT s.*, CASE WHEN s.lost > 0 THEN (SELECT a.worker {loss}) END AS lost_by,
       CASE WHEN s.lost > 0 THEN (SELECT a.ended {loss}) END AS silent_since,
       CASE WHEN s.outcome = 'running' THEN (SELECT c.value FROM {checkpoints} AS c
         WHERE c.task_name = s.task_name AND c.task_instance = s.task_instance
         AND c.slot = s.slot) END AS checkpoint
FROM {slots} AS s WHERE s.task_name = :name AND {where}"""
#: The lost attempt of a row of the ledger that was the last.
LOSS = """FROM {attempts} AS a
WHERE a.task_name = s.task_name AND a.task_instance = s.task_instance AND a.slot = s.slot
  AND a.outcome = 'lost' ORDER BY a.number DESC LIMIT 1"""
#: Gaps, with the number of their slots that a backfill has run since; triggers are not among them.
_GAPS = """
SELECT g.*, (SELECT {f}count(*) FROM {slots} AS s
             WHERE s.task_name = g.task_name AND s.task_instance = g.task_instance
               AND s.slot BETWEEN g.first_slot AND g.last_slot AND s.origin = 'backfill')
       AS run_since
FROM {gaps} AS g WHERE g.task_name = :name AND {where}"""
#: Slots of the ledger that have no plan row and no detached row; an index finds either.
_HAVE_NO_ROW = """
NOT EXISTS (SELECT 1 FROM {tasks} AS t WHERE t.task_name = s.task_name AND t.slot = s.slot
            AND (t.state IS NULL OR t.state <> 'dead')
            AND t.task_instance = s.task_instance AND t.kind <> 'detached')
AND NOT EXISTS (SELECT 1 FROM {tasks} AS t WHERE t.task_name = s.task_name AND t.slot = s.slot
                AND (t.state IS NULL OR t.state <> 'dead')
                AND t.plan_instance = s.task_instance)"""


def entries(
    at: ReadTransaction, where: str, given: Mapping[str, object]
) -> list[SlotInfo]:
    """Return the ledger's rows ``s`` of the task ``:name`` that meet a condition."""
    rows = at.read(_ENTRIES.replace("{loss}", LOSS), given, where=where)
    return [slot_info(row) for row in rows]


def entry_of(
    at: ReadTransaction, where: str, given: Mapping[str, object]
) -> SlotInfo | None:
    """Return the first of them."""
    return next(iter(entries(at, f"{where} LIMIT 1", given)), None)


def slots(
    store: Store,
    name: str,
    instance: str | None = None,
    *,
    limit: int | None = None,
    since: datetime | None = None,
    before: datetime | None = None,
    ended: bool = False,
) -> Iterator[SlotInfo]:
    """Yield ledger and gaps of a job, merged, the newest first; pages are read as needed.

    A gap is placed by its last slot. ``before`` continues a listing; ``ended`` leaves out what
    ``unended`` lists.
    """
    given = {"name": name, "instance": instance, "since": since, "before": before}
    sources = _sources(store, is_one=instance is not None, ended=ended)
    merged = heapq.merge(
        *(source.lines(limit, given) for source in sources),
        key=lambda line: line[0],
        reverse=True,
    )
    return (line for _, line in islice(merged, limit))


def _sources(store: Store, *, is_one: bool, ended: bool) -> list[_Source]:
    """Return the queries for slots and gaps, of one instance or of all."""
    entry = _ENTRIES.replace("{loss}", LOSS)
    if ended:
        entry += f" AND {_HAVE_NO_ROW}"
    # An index orders a job's own slots, another those of its instances, and none both.
    families = ["s.task_instance = 'recurring'", "s.task_instance <> 'recurring'"]
    of_gaps = "1 = 1"
    if is_one:
        families = ["s.task_instance = :instance"]
        of_gaps = "g.task_instance = :instance"
    gaps = _Source(store, _GAPS, "g.last_slot", of_gaps, 0, gap_info)
    return [
        *(
            _Source(store, entry, "s.slot", family, 1, slot_info)
            for family in families
        ),
        gaps,
    ]


@dataclass(frozen=True, slots=True)
class _Source:
    """Lines of one query, placed by ``column``; ``kind`` orders two of one instant."""

    store: Store
    text: str
    column: str
    where: str
    kind: int
    line: Callable[[sa.RowMapping], SlotInfo]

    def lines(
        self, limit: int | None, given: Mapping[str, object]
    ) -> Iterator[tuple[_Place, SlotInfo]]:
        text = f"{self.text} ORDER BY {self.column} DESC, {self.id} DESC LIMIT :size"

        def page(
            size: int, last: tuple[_Place, SlotInfo] | None
        ) -> list[tuple[_Place, SlotInfo]]:
            # Race: what is written between two pages is newer than the first one's end; it is
            # later, not missed.
            where = self._within(given)
            parameters = {**given, "size": size}
            if last is not None:
                where += self._after()
                parameters["at"], _, parameters["id"] = last[0]
            rows = read(self.store, text, parameters, where=where)
            return [(self._place(row), self.line(row)) for row in rows]

        return paged(limit, page)

    @property
    def id(self) -> str:
        return self.column.partition(".")[0] + ".task_instance"

    def _within(self, given: Mapping[str, object]) -> str:
        where = self.where
        if given["since"] is not None:
            where += f" AND {self.column} >= :since"
        if given["before"] is not None:
            where += f" AND {self.column} < :before"
        return where

    def _after(self) -> str:
        """The first condition is implied by the second. An index starts at it, so a deep page
        reads no earlier rows.
        """
        is_later = f"({self.column} < :at OR {self.id} < :id)"
        return f" AND {self.column} <= :at AND {is_later}"

    def _place(self, row: sa.RowMapping) -> _Place:
        column = self.column.partition(".")[2]
        return utc(row[column]), self.kind, row["task_instance"]


_WITHIN = """
SELECT slot FROM {slots}
WHERE task_name = :name AND task_instance = :id AND slot >= :start AND slot < :end
UNION
SELECT slot FROM {tasks}
WHERE task_name = :name AND (task_instance = :id OR plan_instance = :id)
  AND slot >= :start AND slot < :end
ORDER BY slot"""


def slots_within(
    store: Store, name: str, instance: str, start: datetime, end: datetime
) -> list[datetime]:
    """Return the slots of an instance from ``start`` to before ``end`` that are in the ledger or
    in a row.
    """
    given = {"name": name, "id": instance, "start": start, "end": end}
    return [utc(row["slot"]) for row in read(store, _WITHIN, given)]


def slot(
    store: Store, name: str, slot: datetime, instance: str = RECURRING
) -> SlotInfo | None:
    """Return one slot of a job, or of an instance, from the ledger."""
    given = {"name": name, "id": instance, "slot": slot}
    with reading(store) as at:
        return entry_of(at, "s.task_instance = :id AND s.slot = :slot", given)


def attempts(
    store: Store, name: str, instance: str = RECURRING, slot: datetime | None = None
) -> list[AttemptInfo]:
    """Return the attempts of a slot, the oldest first; without one, those of the one-time tasks
    with this id.
    """
    where = "s.task_instance = :id"
    if slot is not None:
        where += " AND s.slot = :slot"
    given = {"name": name, "id": instance, "slot": slot}
    with reading(store) as at:
        last = entry_of(at, f"{where} ORDER BY s.slot DESC", given)
        return attempts_of(at, Key(name, instance), slot, last)


# -- rows -----------------------------------------------------------------------------------------


def _waiting_info(row: sa.RowMapping, last: SlotInfo | None = None) -> SlotInfo:
    """Return a waiting slot as a line, with its last attempt from the ledger, if there was one."""
    id, slot = _key(row)
    line = last or SlotInfo(id=id, slot=slot, outcome=SlotState.WAITING)
    line = replace(
        line,
        outcome=row["state"] or SlotState.WAITING,
        origin=row["origin"] or Origin.SCHEDULE,
        attempts=row["attempt"],
        missed_count=row["collapsed"],
        due=utc(row["parked_due"] or row["execution_time"]),
    )
    if not row["attempt"]:  # the row has the error of the slot before
        return line
    return replace(
        line, reason=line.reason or Reason.RETRY, error=line.error or row["last_error"]
    )


def slot_info(row: sa.RowMapping) -> SlotInfo:
    """Return a ledger row as a line. A claim that ended before its handler began has not
    started.
    """
    started = utc(row["started"]) if row["attempts"] else None
    finished = utc(row["finished"])
    took = finished - started if started and finished else None
    return filled(
        SlotInfo,
        row,
        id=row["task_instance"],
        missed_count=row["collapsed"],
        started=started,
        took=took,
        **progress_of(row["checkpoint"]),
    )


_ATTEMPTS = """
SELECT * FROM {attempts} WHERE task_name = :name AND task_instance = :id {of_slot}
ORDER BY slot, number"""


def attempts_of(
    at: ReadTransaction, key: Key, slot: datetime | None, last: SlotInfo | None
) -> list[AttemptInfo]:
    """Return the attempts of a slot, or of all tasks with this id; ``last``: their newest entry in
    the ledger.
    """
    of_slot = "" if slot is None else "AND slot = :slot"
    given = {"name": key.task_name, "id": key.task_instance, "slot": slot}
    rows = at.read(_ATTEMPTS, given, of_slot=of_slot)
    found = [filled(AttemptInfo, row) for row in rows]
    if last is None or not last.attempts or last.outcome == Outcome.CLAIMED:
        return found
    if last.token in {one.token for one in found}:
        return found
    # Tokens of a slot may fall: after a step of the clock it was retried by hand.
    return sorted(
        [*found, _attempt_of(last)],
        key=lambda one: one.number if slot else one.token or 0,
    )


def _attempt_of(entry: SlotInfo) -> AttemptInfo:
    """Return the newest attempt of a slot, as the ledger has it."""
    return AttemptInfo(
        number=entry.attempts,
        outcome=entry.outcome,
        reason=entry.reason,
        worker=entry.worker,
        token=entry.token,
        claimed=entry.started,
        started=entry.started,
        ended=entry.finished,
        error=entry.error,
    )


def gap_info(row: sa.RowMapping) -> SlotInfo:
    """Return a gap as a line; listings read it with ``run_since``."""
    return filled(
        SlotInfo,
        row,
        id=row["task_instance"],
        slot=utc(row["first_slot"]),
        last=utc(row["last_slot"]),
        outcome=Outcome.SKIPPED,
        origin=Origin.SCHEDULE,
        finished=utc(row["created"]),
    )
