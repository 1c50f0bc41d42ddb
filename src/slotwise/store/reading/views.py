"""What listings show: a job, a slot, the cluster's health."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from slotwise.decide.ending import NEWER, UNREADABLE
from slotwise.model.records import FOREVER, RECURRING, Key
from slotwise.model.vocabulary import Origin, Outcome, Reason, State
from slotwise.schedules import Disabled
from slotwise.schedules.description import UTC, zone_of
from slotwise.store.dialects.conditions import of_key
from slotwise.store.operations.job_operations import Paused
from slotwise.store.operations.transaction import zoned_text
from slotwise.store.planning.revision import Declared
from slotwise.store.reading.worker_registry import WorkerInfo
from slotwise.store.schema.rows import filled, utc
from slotwise.store.schema.tables import Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """A job, or a recurring instance. ``state``: waiting, running, paused, dead, disabled, ended
    (the schedule has no further slot), unreadable, or, where it is due, "no live worker", or
    unroutable: the live workers cannot take it. ``reason`` says why, or gives the pause.

    ``refused``: live workers whose schedule for it is older than the row's, each with its
    revision.
    """

    job: str
    id: str
    state: str
    schedule: str = "–"
    next_slot: datetime | None = None
    due: datetime | None = None
    attempt: int = 0
    worker: str | None = None
    heartbeat: datetime | None = None
    last_success: datetime | None = None
    last_failure: datetime | None = None
    consecutive_failures: int = 0
    last_error: str | None = None
    priority: int = 50
    runs_on: Sequence[str] = ()
    revision: str | None = None
    deployed: datetime | None = None
    refused: Sequence[dict[str, str | None]] = ()
    reason: str | None = None

    @property
    def is_newer(self) -> bool:
        """Whether the row waits for a worker of a newer release: no other can read it."""
        return self.state == State.UNREADABLE and (self.reason or "").startswith(NEWER)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotInfo:
    """A slot in the ledger; or a gap: then ``count`` slots from ``slot`` to ``last`` did not run.
    ``run_since`` of them have a line of their own, since a backfill has run them.

    ``outcome`` is also ``waiting``: for the slot that comes next, or for one that waits for its
    retry. ``lost_by``: the worker from which the slot was taken over last, silent since
    ``silent_since``.
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

    @property
    def place(self) -> datetime:
        """The instant by which listings are ordered: of a gap, its last slot."""
        return self.last or self.slot


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptInfo:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """``rows`` of a task that cannot be read: due ``since`` (None if that cannot be read either),
    with the error.

    ``dead`` rows are not tried again; a job's row is tried each minute.
    """

    task: str
    rows: int
    since: datetime | None
    error: str
    dead: bool
    #: A newer release has written them, and its workers can read them.
    newer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The state of the cluster at one instant.

    ``overdue`` rows wait, ``silent`` ones are held past their lease, ``unreadable`` ones have an
    invalid value, and are neither. ``orphans`` wait or are held past their lease, too, but no live
    worker runs their tasks, of which at most 1,000 are named. ``refused``: jobs of which a live
    worker has another schedule than the row.
    """

    now: datetime
    live_workers: int
    overdue: int
    oldest_due: datetime | None
    silent: int
    dead: int
    orphans: int
    orphan_tasks: Sequence[str]
    refused: Sequence[str]
    #: Names of tasks with such rows for which no live worker carries the tags, and which.
    unroutable: Mapping[str, str]
    unreadable: Sequence[Unreadable]
    #: Some of the jobs that have skipped slots at each start of the last minute: their workers
    #: cannot keep up.
    behind: Sequence[str] = ()
    #: Workers that were not seen within their lease, and have not signed out.
    gone_workers: Sequence[str] = ()
    #: Workers whose rows cannot be read; they do not count as live.
    unreadable_workers: Sequence[str] = ()
    #: Author, time and note of a pause of all; nothing is overdue then.
    paused: str | None = None
    #: Business calendars whose listed days end within a month, with their last year; later days
    #: count as business days.
    ended_calendars: Mapping[str, int] = field(default_factory=dict)


#: Why no worker takes a task while none is alive.
NO_WORKER_LIVES = "no worker is alive"


def state_of_stuck(reason: str) -> State:
    """Return the state of a due row that no worker can take, from the reason that ``obstacle``
    returns.
    """
    return State.NO_LIVE_WORKER if reason == NO_WORKER_LIVES else State.UNROUTABLE


#: Why no worker claims a one-time row whose name is a job's.
UNDER_A_JOB = (
    "it is a one-time row under the name of a job, which only its schedule runs; see: "
    "slotwise tasks cancel"
)


def obstacle(
    name: str, runs_on: Collection[str], workers: Sequence[WorkerInfo]
) -> str | None:
    """Return why no live worker takes this task, or None. For a one-time task only workers know
    the tags.
    """
    live = [worker for worker in workers if worker.live and worker.state == State.RUNNING]
    if not live:
        return NO_WORKER_LIVES
    knowing = [worker for worker in live if name in worker.tasks]
    if not knowing:
        return "no live worker knows it"
    tags = set(runs_on)
    if any(
        tags <= set(worker.tags) and name not in worker.passed_over for worker in knowing
    ):
        return None
    wanted = sorted(tags.union(*(worker.passed_over.get(name, ()) for worker in knowing)))
    return f"no live worker that knows it carries {' and '.join(wanted)}"


def job_info(row: sa.RowMapping, workers: Sequence[WorkerInfo], now: datetime) -> JobInfo:
    """Return a plan row, with author, time and note of its pause, as a line, at ``now``."""
    declared = Declared.load(row["plan"])
    due_time = row["parked_due"] or row["execution_time"]
    parked = row["slot"] is None or due_time >= FOREVER
    over = State.DISABLED if row["schedule"] == str(Disabled()) else State.ENDED
    state = row["state"] or (
        State.RUNNING if row["picked"] else over if parked else State.WAITING
    )
    reason = None
    if state == State.PAUSED and row["author"] is not None:
        pause = Paused(since=utc(row["at"]), author=row["author"], note=row["note"])
        reason = paused_by(pause, zone_of(row["schedule"]))
    if state == State.WAITING and row["execution_time"] <= now:
        reason = obstacle(row["task_name"], declared.runs_on, workers)
        state = state_of_stuck(reason) if reason else state
    if (
        not row["picked"]
        and not row["state"]
        and (row["last_error"] or "").startswith((UNREADABLE, NEWER))
    ):
        state = State.UNREADABLE
        reason = row["last_error"].removeprefix(UNREADABLE)
    refusing = [
        worker for worker in workers if worker.live and row["task_name"] in worker.refused
    ]
    return filled(
        JobInfo,
        row,
        job=row["task_name"],
        id=row["task_instance"],
        state=state,
        reason=reason,
        next_slot=None if parked else utc(row["slot"]),
        due=None if parked else utc(due_time),
        worker=row["picked_by"],
        heartbeat=utc(row["last_heartbeat"]),
        consecutive_failures=row["consecutive_failures"] or 0,
        priority=50 if row["priority"] is None else row["priority"],
        runs_on=declared.runs_on,
        revision=declared.revision,
        deployed=declared.deployed,
        refused=[
            {"worker": worker.worker, "revision": worker.revision} for worker in refusing
        ],
    )


def paused_by(pause: Paused, zone: ZoneInfo = UTC) -> str:
    """Return author, time and note of a pause, as text."""
    said = f": {pause.note}" if pause.note else ""
    return (
        f"paused by {pause.author} at "
        f"{zoned_text(pause.since.replace(microsecond=0), zone)}{said}"
    )


def waiting_info(row: sa.RowMapping, begun: sa.RowMapping | None = None) -> SlotInfo:
    """Return a waiting slot as a line, with its last attempt from the ledger, if there was one."""
    line = SlotInfo(
        slot=utc(row["slot"]),
        outcome=row["state"] or State.WAITING,
        reason=Reason.RETRY if row["attempt"] else None,
        origin=row["origin"] or Origin.SCHEDULE,
        attempts=row["attempt"],
        missed_count=row["collapsed"],
        due=utc(row["parked_due"] or row["execution_time"]),
        error=row["last_error"] if row["attempt"] else None,  # else of the slot before
        id=row["plan_instance"] or row["task_instance"],
    )
    if begun is None:
        return line
    last = slot_info(begun)
    return replace(
        line,
        reason=last.reason or line.reason,
        worker=last.worker,
        token=last.token,
        started=last.started,
        finished=last.finished,
        took=last.took,
        error=last.error or line.error,
        lost_by=last.lost_by,
        silent_since=last.silent_since,
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
    )


def last_loss(tables: Tables) -> tuple[sa.ColumnElement[object], ...]:
    """Return the columns ``lost_by`` and ``silent_since`` for a query of slots."""
    slots = tables.slots
    attempts = tables.attempts
    mine = [
        slots.c[name] == attempts.c[name] for name in ("task_name", "task_instance", "slot")
    ]
    newest = (
        sa.select(attempts)
        .where(*mine, attempts.c.outcome == Outcome.LOST)
        .order_by(attempts.c.number.desc())
    )
    columns = {"lost_by": attempts.c.worker, "silent_since": attempts.c.ended}
    return tuple(
        sa.case(
            (slots.c.lost > 0, newest.with_only_columns(column).limit(1).scalar_subquery())
        ).label(name)
        for name, column in columns.items()
    )


def attempts_of(
    connection: sa.Connection,
    tables: Tables,
    key: Key,
    slot: datetime | None,
    last: SlotInfo | None,
) -> list[AttemptInfo]:
    """Return the attempts of a slot, or of all tasks with this id; ``last``: their newest entry in
    the ledger.
    """
    attempts = tables.attempts
    wanted = sa.select(attempts).where(
        *of_key(attempts, key), *([] if slot is None else [attempts.c.slot == slot])
    )
    rows = connection.execute(
        wanted.order_by(attempts.c.slot, attempts.c.number)
    ).mappings()
    found = [filled(AttemptInfo, row) for row in rows]
    if (
        last is None
        or not last.attempts
        or last.outcome == Outcome.CLAIMED
        or last.token in {a.token for a in found}
    ):
        return found
    current = AttemptInfo(
        number=last.attempts,
        outcome=last.outcome,
        reason=last.reason,
        worker=last.worker,
        token=last.token,
        claimed=last.started,
        started=last.started,
        ended=last.finished,
        error=last.error,
    )
    # Tokens of a slot may fall: after a step of the clock it was retried by hand.
    return sorted([*found, current], key=lambda one: one.number if slot else one.token or 0)


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
