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
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import sqlalchemy as sa

from slotwise.decide.pause import owed_by, passing
from slotwise.decide.slot_choice import slots_in
from slotwise.errors import ConfigurationError
from slotwise.model.records import EPOCH, FOREVER, Row, to_micros
from slotwise.model.values import Value
from slotwise.model.vocabulary import Missed, PauseScope, Reason, RowState
from slotwise.schedules.text import readable
from slotwise.store.operations import pauses
from slotwise.store.operations.pauses import OPEN, Pause, Window
from slotwise.store.operations.slot_operations import cancel_waiting
from slotwise.store.operations.transaction import (
    CHUNK,
    Operation,
    Progress,
    registered,
    schedule_in,
)
from slotwise.store.schema.column_types import Instant
from slotwise.store.schema.rows import utc
from slotwise.store.schema.tables import (
    PAUSED_KEY,
    Columns,
    Condition,
    Tables,
    is_plan,
)
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


def pause(
    at: Operation,
    job: str,
    so_far: Progress,
    *,
    id: str | None = None,
    window: Window = OPEN,
) -> Progress:
    """Start nothing of these rows of the job any more, or of an instance; and none of the one-time
    tasks of this name. ``found`` is not empty if something has changed.
    """
    at.dialect.latch(at.connection, job, shared=False)
    if at.names_tasks(job):
        return _pause_tasks(at, job, so_far, window)
    is_first = id is None and not so_far.after
    if is_first and at.has_tasks(job):
        pauses.keep(at, PauseScope.TASKS, job, "", window)
    return _pause_rows(at, job, so_far, id, window)


def _pause_rows(
    at: Operation, job: str, so_far: Progress, id: str | None, window: Window
) -> Progress:
    is_awake = at.tasks.c.state.is_(None)
    rows, after = at.chunk_of(job, so_far, is_awake, *at.of_instance(job, id))
    scope = PauseScope.JOB if id is None else PauseScope.INSTANCE
    is_new = so_far.number is None and pauses.keep(at, scope, job, id or "", window)
    if not rows and not is_new:
        return so_far.beyond(rows, after)
    number = so_far.number or pauses.sign(at, window, job, id)
    if rows:
        update(at, rows, **paused(at, number))
    return so_far.beyond(rows, after, number=number, found=(True,))


def _pause_tasks(
    at: Operation, name: str, so_far: Progress, window: Window
) -> Progress:
    """Start no one-time task of this name any more: claims leave the name out."""
    found: tuple[bool, ...] = ()
    if pauses.keep(at, PauseScope.TASKS, name, "", window):
        pauses.sign(at, window, name)
        found = (True,)
    return so_far.beyond((), None, found=found)


def paused(at: Operation, number: int) -> dict[str, object]:
    """Return the columns of a row that this operation pauses."""
    tasks = at.tasks.c
    due = tasks.execution_time
    waits = ~tasks.picked
    # A row beside the plan keeps the operation that made it, and a held row the trigger that waits
    # for it.
    of_plan = sa.func.coalesce(tasks.control, number)
    return {
        "state": RowState.PAUSED,
        "parked_due": sa.case((waits, due), else_=tasks.parked_due),
        "execution_time": sa.case((waits, sa.literal(FOREVER, Instant)), else_=due),
        "control": sa.case((is_plan(tasks), of_plan), else_=tasks.control),
    }


def update(
    at: Operation, rows: Sequence[Row], *conditions: Condition, **values: object
) -> None:
    """Write the same columns into those of these locked rows of a job that meet the conditions."""
    tasks = at.tasks
    ids = [row.task_instance for row in rows]
    mine = [tasks.c.task_name == rows[0].task_name, tasks.c.task_instance.in_(ids)]
    at.connection.execute(tasks.update().where(*mine, *conditions).values(**values))


def pause_all(at: Operation, *, window: Window = OPEN) -> bool:
    """Start nothing any more, including what is added later; return False if all was paused
    already, with the same end.
    """
    at.dialect.latch(at.connection, pauses.TURN, shared=False)
    is_changed = _keep_all(at, window)
    meta = at.store.tables.meta
    value = {
        "since": at.now.isoformat(),
        "author": at.author.name,
        "note": at.author.note,
    }
    row = {"key": PAUSED_KEY, "value": json.dumps(value)}
    is_changed = at.dialect.insert_new(at.connection, meta, row) or is_changed
    if is_changed:
        pauses.sign(at, window, None)
    return is_changed


def _keep_all(at: Operation, window: Window) -> bool:
    """Note the end of a pause of all, or that it has none; return whether that is new."""
    if window.until is not None:
        return pauses.keep(at, PauseScope.ALL, "", "", window)
    kept = pauses.kept(at, "")
    pauses.forget(at, *kept)
    return bool(kept)


def resume(
    at: Operation, job: str, so_far: Progress, *, replay: bool, id: str | None = None
) -> Progress:
    """Resume these rows of the job, or of an instance, or the one-time tasks of this name.
    ``replay``: leave slots of the pause to the job's catch-up, whatever was said when it was set.
    """
    at.dialect.latch(at.connection, job, shared=False)
    kept = pauses.kept(at, job, id)
    is_of_tasks = [one for one in kept if one.scope == PauseScope.TASKS]
    if at.names_tasks(job) or (is_of_tasks and not at.has_plan(job)):
        return _resume_tasks(at, job, so_far, kept)
    return _resume_rows(at, job, so_far, kept, id, replay=replay)


def _resume_rows(
    at: Operation,
    job: str,
    so_far: Progress,
    kept: list[Pause],
    id: str | None,
    *,
    replay: bool,
) -> Progress:
    is_asleep = at.tasks.c.state == RowState.PAUSED
    rows, after = at.chunk_of(job, so_far, is_asleep, *at.of_instance(job, id))
    if after is None:
        pauses.forget(at, *kept)
    if not rows and not kept:
        return so_far.beyond(rows, after)
    number = so_far.number or at.sign("resume", job=job, id=id, replay=replay or None)
    woken = wake_rows(at, rows, kept, replay=replay)
    return so_far.beyond(rows, after, number=number, found=so_far.found + woken)


def _resume_tasks(
    at: Operation, name: str, so_far: Progress, kept: list[Pause]
) -> Progress:
    found: tuple[Resumed, ...] = ()
    if kept:
        pauses.forget(at, *kept)
        at.sign("resume", job=name)
        found = (Resumed(job=name, skipped=0, next_slot=None),)
    return so_far.beyond((), None, found=found)


def wake_rows(
    at: Operation, rows: Sequence[Row], kept: list[Pause], *, replay: bool
) -> tuple[Resumed, ...]:
    """Resume locked rows of a job, each by its pause, or that of the job."""
    if not rows:
        return ()
    of = pauses.by_instance(kept)
    plans = at.caught_up(*(row for row in rows if row.is_plan))
    found = tuple(
        _wake(at, row, of.get(row.task_instance, of.get(None)), replay=replay)
        for row in plans
    )
    is_asleep = at.tasks.c.state == RowState.PAUSED
    update(at, rows, is_asleep, **_awake(at))  # the others have passed slots
    return found


def end_pauses(at: Operation) -> list[Pause]:
    """End pauses of one name whose time has come, and return them; of a job with many rows, a
    chunk of them. If others are due, or rows are left, the pauses are still listed as due.

    Races: see ``pauses``.
    """
    if not at.dialect.alone(at.connection, pauses.TURN):
        return []
    due = pauses.first_ended(at)
    if due is None:
        return []
    name = due.job
    at.dialect.latch(at.connection, name or pauses.TURN, shared=False)
    kept = pauses.kept(at, name or "")
    ended = [one for one in kept if one.until is not None and one.until <= at.now]
    if not ended:
        return []
    _end_pauses_of(at, name, kept, ended)
    return ended


def _end_pauses_of(
    at: Operation, name: str | None, kept: list[Pause], ended: list[Pause]
) -> None:
    if name is None:
        resume_all(at, replay=False)
    elif ended[0].scope == PauseScope.TASKS and not at.has_plan(name):
        _resume_tasks(at, name, Progress(), ended)
    else:
        _end_pauses_of_job(at, name, kept, ended)


def _end_pauses_of_job(
    at: Operation, job: str, kept: list[Pause], ended: list[Pause]
) -> None:
    """Wake a chunk of the rows whose pauses have ended, and forget these with the last of them.
    What another pause holds sleeps on.
    """
    tasks = at.tasks.c
    id = tasks.task_instance
    is_asleep = tasks.state == RowState.PAUSED
    mine = [tasks.task_name == job, is_asleep, _wakes(at, kept, ended)]
    first = sa.select(id).where(*mine).order_by(id).limit(CHUNK)
    some = at.connection.scalars(first).all()
    # Race: a row that a settlement deletes before its lock is not among the rows.
    wake_rows(at, at.rows(*mine, id.in_(some)), ended, replay=False)
    if len(some) == CHUNK:
        return
    pauses.forget(at, *ended)
    for instance in dict.fromkeys(one.id for one in ended):
        at.sign("resume", job=job, id=instance)


def _awake(at: Operation) -> dict[str, object]:
    """Return the columns of a row that was paused."""
    tasks = at.tasks.c
    # The end of a held row looks for triggers that wait for it, if an operation has written to
    # that row.
    is_done = sa.and_(is_plan(tasks), ~tasks.picked, tasks.cancel_requested.is_(None))
    return {
        "state": None,
        "parked_due": None,
        "control": sa.case((is_done, None), else_=tasks.control),
        "execution_time": sa.case(
            (tasks.picked, tasks.execution_time), else_=_due(tasks)
        ),
    }


def _due(tasks: Columns) -> sa.ColumnElement[datetime]:
    return sa.func.coalesce(tasks.parked_due, tasks.execution_time)


def _wakes(at: Operation, kept: list[Pause], ended: list[Pause]) -> Condition:
    """Whether a row of the job wakes with the end of these pauses."""
    tasks = at.tasks.c
    instance = sa.func.coalesce(tasks.plan_instance, tasks.task_instance)
    held = {one.id for one in kept if one not in ended}
    if None in held:  # the whole job is still paused
        return sa.false()
    ids = [one.id for one in ended]
    if None not in ids:
        return instance.in_(ids)
    return instance.not_in(sorted(one for one in held if one is not None))


def resume_all(at: Operation, *, replay: bool) -> list[Resumed] | None:
    """Resume all but jobs that are paused by name; return None if there was no pause of all.

    A release without ends of pauses deletes the note alone; then the row of the pause goes here.
    """
    at.dialect.latch(at.connection, pauses.TURN, shared=False)
    kept = pauses.kept(at, "")
    pauses.forget(at, *kept)
    meta = at.store.tables.meta
    ended = at.connection.execute(meta.delete().where(meta.c.key == PAUSED_KEY))
    if not ended.rowcount:
        return None
    pause = kept[0] if kept else None
    at.sign("resume", replay=replay or None)
    if replay or (pause is not None and pause.missed == Missed.CATCH_UP):
        return []
    return _pass_missed(at, pause)


def _pass_missed(at: Operation, pause: Pause | None) -> list[Resumed]:
    """Pass the slots that jobs have missed during a pause of all; return the jobs that had any."""
    tasks = at.tasks
    waiting = at.dialect.conditions.waiting()
    missed = at.rows(is_plan(tasks.c), *waiting, tasks.c.slot <= at.now)
    found = [_wake(at, row, pause, replay=False) for row in at.caught_up(*missed)]
    return [one for one in found if one.skipped]


def _wake(at: Operation, row: Row, pause: Pause | None, *, replay: bool) -> Resumed:
    """Pass the slots that a plan row has missed during the pause. What came while it was held is
    left to its settlement, what came after the pause's end to catch-up.
    """
    replay = replay or (pause is not None and pause.missed == Missed.CATCH_UP)
    until = at.now if pause is None else pause.last(at.now)
    reason = Reason.PAUSED if pause is None else pause.reason
    # A schedule that a newer release wrote is left to a worker that can read it, and to its
    # catch-up.
    schedule = None if row.picked or replay else readable(row.schedule or "-")
    passed = None if schedule is None else passing(row, schedule, until, reason)
    if passed is None:
        return Resumed(job=row.task_name, skipped=0, next_slot=row.slot)
    at.skip(row, *passed.gaps)
    awake: dict[str, object] = {"state": None, "parked_due": None}
    awake["control"] = row.control if row.cancel_requested else None
    if row.state == RowState.PAUSED:
        awake["execution_time"] = _due(at.tasks.c)
    at.change(row, **{**awake, **passed.row})
    next_slot = passed.row.get("slot", row.slot)
    return Resumed(
        job=row.task_name, skipped=slots_in(passed.gaps), next_slot=next_slot
    )


def all_paused(connection: sa.Connection, tables: Tables) -> Paused | None:
    """Return the pause of all; None if there is none."""
    found = connection.scalar(
        sa.select(tables.meta.c.value).where(tables.meta.c.key == PAUSED_KEY)
    )
    if found is None:
        return None
    try:
        value = json.loads(found)
        since = utc(datetime.fromisoformat(value["since"]))
        return Paused(since=since, author=str(value["author"]), note=value["note"])
    except (ValueError, TypeError, LookupError, RecursionError):
        # whoever may pause all may also write this
        note = "its author and time cannot be read"
        return Paused(since=EPOCH, author="unknown", note=note)


def delete(
    at: Operation, job: str, so_far: Progress, *, known: bool = False
) -> Progress:
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
        count = at.count(tasks.c.task_name == job)
        pauses.forget(at, *pauses.kept(at, job))
        number = at.sign("delete", job=job, rows=count)
    end(at, rows)
    return so_far.beyond(rows, after, number=number)


def _refuse_to_delete(at: Operation, job: str, *, known: bool) -> None:
    """Raise ConfigurationError for a job that runs, or that a live worker would plan again."""
    tasks = at.tasks.c
    held = sa.select(tasks.picked_by).where(tasks.task_name == job, tasks.picked)
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
    waiting = [row for row in rows if row.is_plan and not row.picked]
    decided = dict(
        zip((row.key for row in waiting), at.caught_up(*waiting), strict=True)
    )
    for row in rows:
        if row.picked:
            # Race: only a mark goes onto a held row. Without the row, its holder would take the
            # run for lost.
            at.change(row, state=RowState.DELETED)
        elif row.is_plan:
            _end_plan(at, row, decided[row.key])
        else:
            cancel_waiting(at, row, Reason.DELETED)
    if plans := [row for row in rows if row.is_plan]:
        name, ids = plans[0].task_name, [row.task_instance for row in plans]
        displace(at, [name], ids)
        pauses.forget_instances(at, name, ids)


def _end_plan(at: Operation, row: Row, decided: Row) -> None:
    """Delete a waiting plan row. What has come and not begun ends, and a slot that waits for its
    retry; if the schedule cannot be read, the slot in the row.
    """
    passed = passing(decided, owed_by(row), at.now, Reason.DELETED)
    if row.attempt:
        ledger.cancel_retry(at.transaction, row, Reason.DELETED)
    at.skip(row, *(passed.gaps if passed else ()))
    at.delete(row)


def displace(at: Operation, names: Collection[str], ids: Collection[str]) -> None:
    """Take these instances of a task, under any of its names, out of their scopes."""
    placed = at.store.tables.instances
    mine = placed.c.task_name.in_(names), at.dialect.among(placed.c.task_instance, ids)
    at.connection.execute(placed.delete().where(*mine))


def new_epoch(at: Operation) -> Epoch:
    """Raise all tokens, end all claims, and change the installation's id, so that earlier holders
    are rejected.
    """
    meta = at.store.tables.meta
    claims, rows = _raise_tokens(at, to_micros(at.now))
    installation = str(uuid.uuid4())
    renamed = meta.update().where(meta.c.key == "installation_id")
    at.connection.execute(renamed.values(value=installation))
    at.sign("new_epoch", installation=installation, rows=rows, claims=claims)
    return Epoch(installation=installation, rows=rows, claims=claims)


def _raise_tokens(at: Operation, least: int) -> tuple[int, int]:
    """Give each row a token from ``least`` on, and end all claims; return how many claims, and
    how many rows.
    """
    tasks = at.tasks
    held = at.rows(tasks.c.picked)
    for row in held:
        token = max(least, row.version) + 1
        ledger.raise_token(at.transaction, row, token)
        at.change(row, version=token)
    raised = tasks.update().where(tasks.c.version < least).values(version=least)
    return len(held), at.connection.execute(raised).rowcount + len(held)


def settle_until(at: Operation, until: datetime) -> list[SettledJob]:
    """Skip the slots up to ``until`` that have not begun (settled), and cancel those that wait for
    a retry.

    The slot of a held row has begun and stays; the row's watermark tells its holder, or the
    reaper, of those after it.
    """
    until = min(until, at.now)
    rows = at.rows(is_plan(at.tasks.c), at.tasks.c.slot <= until)
    found = [
        settled
        for row, decided in zip(rows, at.caught_up(*rows), strict=True)
        if (settled := _settle(at, row, decided, until)) is not None
    ]
    at.sign(
        "settle_until", until=until.isoformat(), slots=sum(one.slots for one in found)
    )
    return found


def _settle(
    at: Operation, row: Row, decided: Row, until: datetime
) -> SettledJob | None:
    """Pass the slots of a locked row up to an instant; ``decided``: the row as ledger and gaps
    have it. Return None if none has come.
    """
    schedule = schedule_in(row)
    unbegun = passed = passing(decided, schedule, until, Reason.SETTLED)
    gaps = unbegun.gaps if unbegun else ()
    is_cancelled = row.attempt > 0 and not row.picked
    if is_cancelled:
        ledger.cancel_retry(at.transaction, row, Reason.SETTLED)
    at.skip(row, *gaps)
    if not row.picked:
        passed = passing(replace(decided, attempt=0), schedule, until, Reason.SETTLED)
    if passed is None:
        return None
    at.change(row, **passed.row)
    return SettledJob(
        job=row.task_name,
        instance=row.task_instance,
        slots=slots_in(gaps) + is_cancelled,
        next_slot=passed.row["next_slot" if row.picked else "slot"],
    )
