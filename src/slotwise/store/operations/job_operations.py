"""Operations on whole jobs: pause, resume, delete; and for all of them, after a restore, a new
epoch and settle-until.

A paused job's rows have a state, and no claim looks at those. A pause of all is one row of
``scheduled_meta`` that every claim checks, so it also holds for tasks and jobs that come later.
Races:

- against a claim: the first to lock the row. A claim that was first goes on, and its settlement
  parks the row;
- against a settlement: it holds the row's lock. The operation sees what it wrote, or it sees the
  operation's state;
- against a planner: it changes schedule and due time of a waiting row, never its state;
- against a new instance: by the job's latch. It is inserted before and sleeps, or after and sees
  the pause. An operation on many rows takes chunks, each in a transaction of its own, until it
  finds no row that is left to do;
- against another pause or resume: by the rows' locks, or that of the one row. The second finds
  nothing to do;
- delete against a worker that registers the job: it would plan the job again, so the operation is
  rejected.

A restore of all tables, or a failover that lost commits, is unlike the rest: the operator alone
knows what happened after the moment to which the tables have gone back. Pause all, or stop all
workers, before these operations.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import sqlalchemy as sa

from slotwise.decide.claim import Advance
from slotwise.decide.pause import owed_by, passing
from slotwise.decide.slot_choice import slots_in
from slotwise.errors import ConfigurationError
from slotwise.model.records import FOREVER, Row, to_micros
from slotwise.model.values import Value
from slotwise.model.vocabulary import Reason, RowState
from slotwise.schedules.text import readable
from slotwise.store.operations.slot_operations import cancel_waiting
from slotwise.store.operations.transaction import (
    Operation,
    Progress,
    registered,
    schedule_in,
)
from slotwise.store.schema.column_types import Instant
from slotwise.store.schema.rows import utc
from slotwise.store.schema.tables import PAUSED_KEY, Tables, is_plan
from slotwise.store.slots import ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused(Value):
    """Author, time and note of a pause of all."""

    since: datetime
    author: str
    note: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(Value):
    """A resumed job: how many of its slots were skipped (paused), and its next slot."""

    job: str
    skipped: int
    next_slot: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """The new id of the installation, how many rows got new tokens, and how many claims ended."""

    installation: str
    rows: int
    claims: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledJob:
    """A job and how many of its slots up to an instant will not run."""

    job: str
    instance: str
    slots: int
    next_slot: datetime | None


def pause(at: Operation, job: str, so_far: Progress) -> Progress:
    """Start nothing of these rows of the job any more."""
    tasks = at.tasks
    rows, after = at.chunk_of(job, so_far, tasks.c.state.is_(None))
    if not rows:
        return so_far.beyond(rows, after)
    number = so_far.number or at.sign("pause", job=job)
    due = tasks.c.execution_time
    waits = ~tasks.c.picked
    # A row beside the plan keeps the operation that made it, and a held row the trigger that waits
    # for it.
    of_plan = sa.func.coalesce(tasks.c.control, number)
    _update(
        at,
        rows,
        state=RowState.PAUSED,
        parked_due=sa.case((waits, due), else_=tasks.c.parked_due),
        execution_time=sa.case((waits, sa.literal(FOREVER, Instant)), else_=due),
        control=sa.case((is_plan(tasks), of_plan), else_=tasks.c.control),
    )
    return so_far.beyond(rows, after, number=number)


def _update(
    at: Operation,
    rows: Sequence[Row],
    *conditions: sa.ColumnElement[bool],
    **values: object,
) -> None:
    """Write the same columns into those of these locked rows of a job that meet the conditions."""
    tasks = at.tasks
    ids = [row.task_instance for row in rows]
    mine = [tasks.c.task_name == rows[0].task_name, tasks.c.task_instance.in_(ids)]
    at.connection.execute(tasks.update().where(*mine, *conditions).values(**values))


def pause_all(at: Operation) -> bool:
    """Start nothing any more, including what is added later; return False if all was paused
    already.
    """
    meta = at.store.tables.meta
    value = {
        "since": at.now.isoformat(),
        "author": at.author.name,
        "note": at.author.note,
    }
    row = {"key": PAUSED_KEY, "value": json.dumps(value)}
    if not at.dialect.insert_new(at.connection, meta, row):
        return False
    at.sign("pause")
    return True


def resume(at: Operation, job: str, so_far: Progress, *, replay: bool) -> Progress:
    """Resume these rows of the job. ``replay``: leave slots of the pause to the job's catch-up."""
    tasks = at.tasks
    rows, after = at.chunk_of(job, so_far, tasks.c.state == RowState.PAUSED)
    if not rows:
        return so_far.beyond(rows, after)
    number = so_far.number or at.sign("resume", job=job, replay=replay or None)
    found = [
        _wake(at, row, replay=replay)
        for row in at.caught_up(*(row for row in rows if row.is_plan))
    ]
    # The end of a held row looks for triggers that wait for it, if an operation has written to
    # that row.
    is_done = sa.and_(is_plan(tasks), ~tasks.c.picked, tasks.c.cancel_requested.is_(None))
    due = sa.case((tasks.c.picked, tasks.c.execution_time), else_=_due(tasks))
    _update(
        at,
        rows,
        tasks.c.state == RowState.PAUSED,  # the others have passed slots, and are awake
        state=None,
        parked_due=None,
        control=sa.case((is_done, None), else_=tasks.c.control),
        execution_time=due,
    )
    return so_far.beyond(rows, after, number=number, found=(*so_far.found, *found))


def _due(tasks: sa.Table) -> sa.ColumnElement[datetime]:
    return sa.func.coalesce(tasks.c.parked_due, tasks.c.execution_time)


def resume_all(at: Operation, *, replay: bool) -> list[Resumed] | None:
    """Resume all but jobs that are paused by name; return None if there was no pause of all."""
    meta = at.store.tables.meta
    tasks = at.tasks
    if not at.connection.execute(meta.delete().where(meta.c.key == PAUSED_KEY)).rowcount:
        return None
    at.sign("resume", replay=replay or None)
    missed = [
        is_plan(tasks),
        tasks.c.state.is_(None),
        ~tasks.c.picked,
        tasks.c.slot <= at.now,
    ]
    found = (
        []
        if replay
        else [_wake(at, row, replay=False) for row in at.caught_up(*at.rows(*missed))]
    )
    return [one for one in found if one.skipped]


def _wake(at: Operation, row: Row, *, replay: bool) -> Resumed:
    """Pass the slots that a plan row has missed. What came while it was held is left to its
    settlement.
    """
    # A schedule that a newer release wrote is left to a worker that can read it, and to its
    # catch-up.
    schedule = None if row.picked or replay else readable(row.schedule or "-")
    passed = None if schedule is None else passing(row, schedule, at.now, Reason.PAUSED)
    if passed is None:
        return Resumed(job=row.task_name, skipped=0, next_slot=row.slot)
    due = {"execution_time": _due(at.tasks)} if row.state == RowState.PAUSED else {}
    control = row.control if row.cancel_requested else None
    at.skip(row, *passed.gaps)
    at.change(
        row,
        **{**due, **passed.row, "state": None, "parked_due": None, "control": control},
    )
    return Resumed(
        job=row.task_name,
        skipped=slots_in(passed.gaps),
        next_slot=passed.row.get("slot", row.slot),
    )


def all_paused(connection: sa.Connection, tables: Tables) -> Paused | None:
    """Return the pause of all; None if there is none."""
    found = connection.scalar(
        sa.select(tables.meta.c.value).where(tables.meta.c.key == PAUSED_KEY)
    )
    if found is None:
        return None
    value = json.loads(found)
    return Paused(
        since=utc(datetime.fromisoformat(value["since"])),
        author=value["author"],
        note=value["note"],
    )


def delete(at: Operation, job: str, so_far: Progress, *, known: bool = False) -> Progress:
    """Delete these rows of the job; the history stays. ``known``: even if a live worker registers
    it.

    Race: a row is claimed after the first chunk. Its slot runs, and its row goes when that has
    ended.
    """
    tasks = at.tasks
    number = so_far.number
    rows, after = at.chunk_of(
        job, so_far, tasks.c.state.is_distinct_from(RowState.DELETED)
    )
    if number is None:
        _refuse_to_delete(at, job, known=known)
        of_job = tasks.c.task_name == job
        count = at.connection.scalar(sa.select(sa.func.count()).where(of_job))
        number = at.sign("delete", job=job, rows=count)
    end(at, rows)
    return so_far.beyond(rows, after, number=number)


def _refuse_to_delete(at: Operation, job: str, *, known: bool) -> None:
    """Raise ConfigurationError for a job that runs, or that a live worker would plan again."""
    tasks = at.tasks
    held = sa.select(tasks.c.picked_by).where(tasks.c.task_name == job, tasks.c.picked)
    if (holder := at.connection.execute(held.limit(1)).first()) is not None:
        raise ConfigurationError(
            f"job {job!r} runs on {holder[0]!r:.80}; cancel it (slotwise cancel "
            f"{job}), or wait for its end"
        )
    worker = registered(at.connection, at.store.tables, at.now).get(job)
    if worker is not None and not known:
        raise ConfigurationError(
            f"worker {worker} registers job {job!r}; stop it, or deploy it without the job"
        )


def end(at: Operation, rows: Sequence[Row]) -> None:
    """Delete locked rows; the slots that they wait for end. The row of a run is deleted when that
    has ended.
    """
    for row in rows:
        if row.picked:
            # Race: only a mark goes onto a held row. Without the row, its holder would take the
            # run for lost.
            at.change(row, state=RowState.DELETED)
        elif row.is_plan:
            # What has come and not begun ends, and a slot that waits for its retry; if the
            # schedule cannot be read, the slot in the row.
            (decided,) = at.caught_up(row)
            _pass(
                at,
                row,
                passing(decided, owed_by(row), at.now, Reason.DELETED),
                Reason.DELETED,
            )
            at.delete(row)
        else:
            cancel_waiting(at, row, Reason.DELETED)


def _pass(at: Operation, row: Row, passed: Advance | None, reason: Reason) -> None:
    """Cancel the slot of a waiting plan row if it waits for its retry, and skip what has come
    besides.
    """
    if row.attempt:
        ledger.cancel_retry(at.transaction, row, reason)
    if passed is not None:
        at.skip(row, *passed.gaps)


def new_epoch(at: Operation) -> Epoch:
    """Raise all tokens, end all claims, and change the installation's id, so that earlier holders
    are rejected.
    """
    meta = at.store.tables.meta
    tasks = at.tasks
    number = to_micros(at.now)
    installation = str(uuid.uuid4())
    held = at.rows(tasks.c.picked)
    for row in held:
        token = max(number, row.version) + 1
        ledger.raise_token(at.transaction, row, token)
        at.change(row, version=token)
    raised = tasks.update().where(tasks.c.version < number).values(version=number)
    count = at.connection.execute(raised).rowcount + len(held)
    at.connection.execute(
        meta.update().where(meta.c.key == "installation_id").values(value=installation)
    )
    at.sign("new_epoch", installation=installation, rows=count, claims=len(held))
    return Epoch(installation=installation, rows=count, claims=len(held))


def settle_until(at: Operation, until: datetime) -> list[SettledJob]:
    """Skip the slots up to ``until`` that have not begun (settled), and cancel those that wait for
    a retry.

    The slot of a held row has begun and stays; the row's watermark tells its holder, or the
    reaper, of those after it.
    """
    until = min(until, at.now)
    rows = at.rows(is_plan(at.tasks), at.tasks.c.slot <= until)
    found = [
        settled
        for row, decided in zip(rows, at.caught_up(*rows), strict=True)
        if (settled := _settle(at, row, decided, until)) is not None
    ]
    at.sign(
        "settle_until", until=until.isoformat(), slots=sum(one.slots for one in found)
    )
    return found


def _settle(at: Operation, row: Row, decided: Row, until: datetime) -> SettledJob | None:
    """Pass the slots of a locked row up to an instant; ``decided``: the row as ledger and gaps
    have it. Return None if none has come.
    """
    schedule = schedule_in(row)
    unbegun = passed = passing(decided, schedule, until, Reason.SETTLED)
    if row.picked:
        at.skip(row, *(unbegun.gaps if unbegun else ()))
    else:
        passed = passing(replace(decided, attempt=0), schedule, until, Reason.SETTLED)
        _pass(at, row, unbegun, Reason.SETTLED)
    if passed is None:
        return None
    at.change(row, **passed.row)
    is_cancelled = row.attempt > 0 and not row.picked
    return SettledJob(
        job=row.task_name,
        instance=row.task_instance,
        slots=slots_in(unbegun.gaps if unbegun else ()) + is_cancelled,
        next_slot=passed.row["next_slot" if row.picked else "slot"],
    )
