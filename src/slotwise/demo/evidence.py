"""What is known about a run: the tables, and a file that is independent of the database. Each
handler appends a line to it when it starts and a line when it ends.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeAlias

import sqlalchemy as sa

from slotwise import JobContext, Schedule, parse_schedule
from slotwise.inspect import RECURRING
from slotwise.spi import Definition, Origin, Tables, tables

TICK = timedelta(microseconds=1)
#: Who makes a slot that the schedule asked for.
PLANNED = (Origin.SCHEDULE, Origin.CATCH_UP)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Mark: TypeAlias = Literal["start", "end"]

#: The note of a handler that succeeded; the others note the name of their exception.
OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """The start or the end of an attempt, as its handler wrote it; ``at`` is by the clock of its
    host.
    """

    mark: Mark
    job: str
    instance: str
    slot: datetime | None
    attempt: int
    token: int
    pid: int
    at: datetime
    note: str = ""


class HandlerLog:
    """A file that any number of processes append to: one write per line, so that not even a kill
    tears one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def attempt(self, ctx: JobContext) -> Iterator[None]:
        """Surround the work of a handler, ``def`` or ``async def``: write its start and its
        end.
        """
        self.write(ctx, "start")
        try:
            yield
        except BaseException as error:
            self.write(ctx, "end", type(error).__name__)
            raise
        self.write(ctx, "end", OK)

    def write(self, ctx: JobContext, mark: Mark, note: str = "") -> None:
        """Append one line."""
        line = {
            "mark": mark,
            "job": ctx.name,
            "instance": ctx.id,
            "slot": ctx.slot.isoformat() if ctx.slot else None,
            "attempt": ctx.attempt,
            "token": ctx.token,
            "pid": os.getpid(),
            "at": time.time(),
            "note": note,
        }
        target = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(target, json.dumps(line).encode() + b"\n")
        finally:
            os.close(target)

    def read(self) -> list[LogLine]:
        """Return all lines in the order in which they were written.

        Race: a reader may see the beginning of a line that a process is writing. What has no end
        yet is left out.
        """
        if not self.path.exists():
            return []
        written, _, _ = self.path.read_text().rpartition("\n")
        return [_line(json.loads(text)) for text in written.splitlines()]


def _line(values: dict[str, Any]) -> LogLine:
    slot = datetime.fromisoformat(values["slot"]) if values["slot"] else None
    return LogLine(
        **{**values, "slot": slot, "at": datetime.fromtimestamp(values["at"], UTC)}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a job promises. ``schedule`` has every slot that was ever due, including those of
    earlier schedules.
    """

    name: str
    schedule: Schedule
    gives_up: bool = False
    #: How many attempts may fail.
    tries: int = 1
    #: How many slots may run side by side.
    abreast: int = 1
    #: Its handler uses complete_in: the ledger may say succeeded although its end was never
    #: written down.
    completes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """A slot in the ledger."""

    slot: datetime
    outcome: str
    origin: str
    attempts: int
    lost: int
    aborted: int
    token: int | None
    finished: datetime | None

    @property
    def is_planned(self) -> bool:
        """Whether the schedule made this slot, and no person."""
        return self.origin in PLANNED


@dataclass(frozen=True, slots=True, kw_only=True)
class GapRow:
    """Slots that did not run, first and last included."""

    first: datetime
    last: datetime
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """A job's row in the queue: since when it is planned, and which slot it waits for, or is held
    for.
    """

    planned: datetime
    slot: datetime | None
    watermark: datetime | None
    picked_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that is known about one job."""

    rule: Rule
    plan: PlanRow | None
    ledger: Mapping[datetime, LedgerRow]
    gaps: Sequence[GapRow] = ()
    log: Sequence[LogLine] = ()
    #: Slots of the schedule that wait, or are held, in rows of their own.
    detached: Collection[datetime] = ()


def gather(
    connection: sa.Connection,
    jobs: Iterable[Definition],
    log: HandlerLog | Iterable[LogLine],
    *,
    names: Tables | None = None,
    schedules: Mapping[str, Schedule] | None = None,
    completes: Collection[str] = (),
) -> list[Evidence]:
    """Read the tables and the handlers' log for these jobs.

    ``schedules`` has the complete schedules of jobs whose schedule was changed during the run.
    ``completes`` names the jobs that use ``complete_in``. While workers run, pass the log itself,
    and a connection under REPEATABLE READ.

    Race: handlers start and end while the tables are read. So the log is read before and after.
    Lines from before must be in the ledger, attempts in the ledger must be in the log afterwards,
    and later starts are left out.
    """
    before = _lines(log)
    found = [
        _evidence(
            connection, names or tables(), _rule(job, schedules or {}, completes)
        )
        for job in jobs
        if job.is_job
    ]
    later = log.read()[len(before) :] if isinstance(log, HandlerLog) else []
    return [
        replace(
            one,
            log=[
                *_of(one, before),
                *(line for line in _of(one, later) if _is_known(one, line)),
            ],
        )
        for one in found
    ]


def _lines(log: HandlerLog | Iterable[LogLine]) -> list[LogLine]:
    return log.read() if isinstance(log, HandlerLog) else list(log)


def _of(one: Evidence, lines: Iterable[LogLine]) -> list[LogLine]:
    return [line for line in lines if line.job == one.rule.name]


def _is_known(one: Evidence, line: LogLine) -> bool:
    """Whether the ledger had this attempt when it was read. Ends without a start are ignored
    later.
    """
    row = one.ledger.get(line.slot) if line.slot else None
    return line.mark == "end" or (
        row is not None and row.token is not None and line.token <= row.token
    )


def _rule(
    job: Definition, schedules: Mapping[str, Schedule], completes: Collection[str]
) -> Rule:
    return Rule(
        name=job.name,
        schedule=schedules.get(job.name) or job.schedule or parse_schedule("-"),
        gives_up=job.gives_up,
        tries=job.retry.max_attempts if job.retry else 1,
        abreast=job.overlap.max if job.overlap.mode == "allow" else 1,
        completes=job.name in completes,
    )


def _evidence(connection: sa.Connection, names: Tables, rule: Rule) -> Evidence:
    plan, ledger, gaps = (
        connection.execute(
            sa.select(*columns).where(
                table.c.task_name == rule.name, table.c.task_instance == RECURRING
            )
        ).all()
        for table, columns in _columns(names)
    )
    tasks = names.tasks.c
    beside = sa.select(tasks.slot).where(
        tasks.task_name == rule.name, tasks.plan_instance == RECURRING
    )
    rows = [LedgerRow(**row._mapping) for row in ledger]
    return Evidence(
        rule=rule,
        plan=_plan(*plan[0]) if plan else None,
        ledger={row.slot: row for row in rows},
        gaps=[
            GapRow(first=first, last=last, count=count) for first, last, count in gaps
        ],
        detached=set(connection.scalars(beside.where(tasks.origin.in_(PLANNED)))),
    )


def _columns(names: Tables) -> list[tuple[sa.Table, list[sa.Column[Any]]]]:
    tasks = names.tasks.c
    slots = names.slots.c
    gaps = names.gaps.c
    return [
        (
            names.tasks,
            [tasks.created_version, tasks.slot, tasks.watermark, tasks.picked_by],
        ),
        (names.slots, [slots[name] for name in LedgerRow.__slots__]),
        (names.gaps, [gaps.first_slot, gaps.last_slot, gaps["count"]]),
    ]


def _plan(
    born: int, slot: datetime | None, watermark: datetime | None, picked_by: str | None
) -> PlanRow:
    """A row's first version is the time at which it was planned."""
    return PlanRow(
        planned=_EPOCH + born * TICK,
        slot=slot,
        watermark=watermark,
        picked_by=picked_by,
    )
