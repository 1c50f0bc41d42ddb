"""The verdict over a run: were the laws kept, and do database and handlers agree?

log = HandlerLog(Path("run.log"))  # in every handler: with log.attempt(ctx): …
verdict = judge(gather(connection, registry.jobs, log))
verdict.clean, verdict.findings, verdict.tally

The evidence is the tables, and a file that is independent of the database: each handler appends a
line to it when it starts and a line when it ends.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias

import sqlalchemy as sa

from slotwise import JobContext, Schedule, parse_schedule
from slotwise.inspect import RECURRING
from slotwise.spi import Definition, Origin, Outcome, Tables, tables

TICK = timedelta(microseconds=1)
#: Who makes a slot that the schedule asked for.
PLANNED = (Origin.SCHEDULE, Origin.CATCH_UP)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# -- evidence -------------------------------------------------------------------------------------

Mark: TypeAlias = Literal["start", "end"]

#: The note of a handler that succeeded; the others note the name of their exception.
OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
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

    def read(self) -> list[Line]:
        """Return all lines in the order in which they were written.

        Race: a reader may see the beginning of a line that a process is writing. What has no end
        yet is left out.
        """
        if not self.path.exists():
            return []
        written, _, _ = self.path.read_text().rpartition("\n")
        return [_line(json.loads(text)) for text in written.splitlines()]


def _line(values: dict[str, Any]) -> Line:
    slot = datetime.fromisoformat(values["slot"]) if values["slot"] else None
    return Line(**{**values, "slot": slot, "at": datetime.fromtimestamp(values["at"], UTC)})


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
    log: Sequence[Line] = ()
    #: Slots of the schedule that wait, or are held, in rows of their own.
    detached: Collection[datetime] = ()


def gather(
    connection: sa.Connection,
    jobs: Iterable[Definition],
    log: HandlerLog | Iterable[Line],
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
        _evidence(connection, names or tables(), _rule(job, schedules or {}, completes))
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


def _lines(log: HandlerLog | Iterable[Line]) -> list[Line]:
    return log.read() if isinstance(log, HandlerLog) else list(log)


def _of(one: Evidence, lines: Iterable[Line]) -> list[Line]:
    return [line for line in lines if line.job == one.rule.name]


def _is_known(one: Evidence, line: Line) -> bool:
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
        gaps=[GapRow(first=first, last=last, count=count) for first, last, count in gaps],
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
        planned=_EPOCH + born * TICK, slot=slot, watermark=watermark, picked_by=picked_by
    )


# -- the verdict ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A broken law."""

    law: str
    job: str
    slot: datetime | None
    text: str

    def __str__(self) -> str:
        where = f"{self.job} {self.slot.isoformat()}" if self.slot else self.job
        return f"{self.law}: {where}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Slots, counted; ``taken_over`` are those that a dead worker left and another one ended."""

    due: int = 0
    ran: int = 0
    succeeded: int = 0
    failed: int = 0
    taken_over: int = 0
    lost: int = 0
    dead: int = 0
    cancelled: int = 0
    skipped: int = 0
    missing: int = 0
    twice: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            **{name: getattr(self, name) + getattr(other, name) for name in self.__slots__}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Without findings every law held, and both witnesses say the same."""

    findings: tuple[Finding, ...]
    tally: Tally
    jobs: Mapping[str, Tally]

    @property
    def clean(self) -> bool:
        return not self.findings

    def __str__(self) -> str:
        return "\n".join([str(self.tally), *map(str, self.findings)])


def judge(
    evidence: Iterable[Evidence],
    *,
    until: datetime | None = None,
    live: Collection[str] = (),
) -> Verdict:
    """Every broken law. Slots due up to ``until`` must have been decided; only ``live`` workers
    may hold a row.
    """
    findings: list[Finding] = []
    tallies: dict[str, Tally] = {}
    for one in evidence:
        broken = [
            Finding(law=law, job=one.rule.name, slot=slot, text=text)
            for law, slot, text in (
                *_queue(one, until, live),
                *(_chain(one) if one.rule.schedule.from_end else _coverage(one)),
                *_starts(one),
                *_outcomes(one),
                *_order(one),
            )
        ]
        findings += broken
        tallies[one.rule.name] = _tally(one, broken)
    return Verdict(
        findings=tuple(findings), tally=sum(tallies.values(), Tally()), jobs=tallies
    )


#: Law, slot, and what is wrong.
_Broken = Iterator[tuple[str, datetime | None, str]]
_Attempt = tuple[datetime | None, int]

# -- the queue: nothing stays behind --------------------------------------------------------------


def _queue(one: Evidence, until: datetime | None, live: Collection[str]) -> _Broken:
    plan = one.plan
    if plan is None:
        yield "vanished", None, "its row is gone from the queue"
        return
    if plan.picked_by is not None and plan.picked_by not in live:
        yield "held", plan.slot, f"still held by {plan.picked_by}"
    for row in one.ledger.values():
        if (
            row.finished is None
            and row.slot not in (plan.slot, *one.detached)
            and row.is_planned
        ):
            yield "open", row.slot, f"left behind as {row.outcome}"
    due = (
        one.rule.schedule.latest_before(until + TICK, floor=plan.planned) if until else None
    )
    if (
        due is not None
        and not one.rule.schedule.from_end
        and plan.slot is not None
        and plan.slot <= due
    ):
        yield "late", plan.slot, f"not decided, and {due.isoformat()} was due"


# -- the plan: every slot once --------------------------------------------------------------------


def _due(one: Evidence) -> list[datetime]:
    """The slots that must be accounted for: all before the one that the row waits for."""
    plan = one.plan
    schedule = one.rule.schedule
    if plan is None or schedule.from_end:
        return sorted(slot for slot, row in one.ledger.items() if row.is_planned)
    last = plan.slot - TICK if plan.slot is not None else plan.watermark
    return list(schedule.slots(plan.planned, last)) if last is not None else []


def _coverage(one: Evidence) -> _Broken:
    due = _due(one)
    for slot in due:
        places = sum(gap.first <= slot <= gap.last for gap in one.gaps)
        places += slot in one.ledger or slot in one.detached
        if places == 0:
            yield "missing", slot, "neither in the ledger nor in a gap"
        elif places > 1:
            yield "double", slot, f"accounted for in {places} places"
    known = {*due, one.plan.slot if one.plan else None}
    for row in one.ledger.values():
        if row.is_planned and row.slot not in known:
            yield "phantom", row.slot, "in the ledger, but never due"
    for gap in one.gaps:
        count = one.rule.schedule.count_between(gap.first - TICK, gap.last)
        if count != gap.count:
            yield "double", gap.first, f"a gap of {gap.count} slots covers {count}"


def _chain(one: Evidence) -> _Broken:
    """Where the end of a run defines the next slot, each slot follows from the end before it."""
    rows = [one.ledger[slot] for slot in _due(one)]
    following = [row.slot for row in rows[1:]]
    if one.plan and one.plan.slot is not None and one.plan.slot not in one.ledger:
        following.append(one.plan.slot)
    for row, slot in zip(rows, following, strict=False):
        wanted = one.rule.schedule.next_after(row.finished) if row.finished else None
        exact = (
            not one.rule.completes
        )  # else the run's end and the settlement's time differ
        if wanted is None or (wanted != slot if exact else wanted > slot):
            yield (
                "missing",
                slot,
                f"after the end before it {wanted.isoformat() if wanted else 'nothing'} was due",
            )


# -- the handlers' log: no start too many ---------------------------------------------------------


def _by_slot(one: Evidence) -> dict[datetime, list[Line]]:
    """The starts of each slot, in the order of their tokens."""
    starts: dict[datetime, list[Line]] = defaultdict(list)
    for line in sorted(one.log, key=lambda line: line.token):
        if line.mark == "start" and line.slot is not None:
            starts[line.slot].append(line)
    return starts


def _ends(one: Evidence) -> dict[_Attempt, Line]:
    return {_attempt(line): line for line in one.log if line.mark == "end"}


def _attempt(line: Line) -> _Attempt:
    """Slots side by side that were claimed by one statement have the same token, each in a row of
    its own.
    """
    return line.slot, line.token


def _starts(one: Evidence) -> _Broken:
    ends = _ends(one)
    for slot, starts in _by_slot(one).items():
        row = one.ledger.get(slot)
        if row is None:
            yield "unknown", slot, "a handler started, but the ledger has no such slot"
            continue
        if row.outcome == Outcome.SKIPPED:
            yield "disagree", slot, "a handler started, the ledger says skipped"
        told = f"of which {row.lost} lost and {row.aborted} aborted"
        if one.rule.gives_up and len(starts) > 1:
            yield "twice", slot, f"{len(starts)} starts of a job that gives up"
        if len(starts) > row.attempts or len({line.attempt for line in starts}) < len(
            starts
        ):
            yield "twice", slot, f"{len(starts)} starts in {row.attempts} attempts"
        if len(starts) > one.rule.tries + row.lost + row.aborted:
            yield "twice", slot, f"{len(starts)} starts {told}"
        replaced = [
            line
            for line in starts[:-1]
            if _attempt(line) not in ends or ends[_attempt(line)].note == OK
        ]
        if len(replaced) > row.lost + row.aborted:
            yield (
                "twice",
                slot,
                f"{len(replaced)} starts that had not failed were repeated, {told}",
            )


def _outcomes(one: Evidence) -> _Broken:
    """Compare the outcome in the ledger with the end that the handler of that token wrote."""
    starts = {_attempt(line) for line in one.log if line.mark == "start"}
    ends = _ends(one)
    for row in one.ledger.values():
        if (
            row.outcome not in (Outcome.SUCCEEDED, Outcome.FAILED)
            or row.token is None
            or row.finished is None
        ):
            continue
        end = ends.get((row.slot, row.token))
        if (row.slot, row.token) not in starts:
            yield (
                "disagree",
                row.slot,
                f"{row.outcome}, but no handler started under that token",
            )
        elif one.rule.completes:
            continue  # the ledger was written before the handler's end
        elif end is None or (end.note == OK) != (row.outcome == Outcome.SUCCEEDED):
            yield (
                "disagree",
                row.slot,
                f"{row.outcome}, but its handler says {end.note if end else 'nothing'}",
            )


def _order(one: Evidence) -> _Broken:
    """Tokens rise with slots and attempts; nothing starts while the attempt before it is believed
    alive.
    """
    starts = [
        line
        for slot, lines in _by_slot(one).items()
        if _is_planned(one, slot)
        for line in lines
    ]
    for before, after in pairwise(
        sorted(starts, key=lambda line: (line.slot, line.attempt))
    ):
        if after.token <= before.token and (
            one.rule.abreast == 1 or after.slot == before.slot
        ):
            yield "token", after.slot, f"{after.token} comes after {before.token}"
    ends = _ends(one)
    running = list[Line]()
    for line in sorted(starts, key=lambda line: line.at):
        running = [
            other
            for other in running
            if _attempt(other) not in ends or ends[_attempt(other)].at > line.at
        ]
        # A frozen process may enter its handler after its loss was noticed and later slots have
        # started.
        is_zombie = _is_let_go(one, line) and all(
            other.token > line.token for other in running
        )
        if len(running) >= one.rule.abreast and not is_zombie:
            yield (
                "overlap",
                line.slot,
                f"started while {', '.join(str(each.token) for each in running)} ran",
            )
        if not _is_let_go(one, line):
            running.append(line)


def _is_planned(one: Evidence, slot: datetime) -> bool:
    return slot in one.ledger and one.ledger[slot].is_planned


def _is_let_go(one: Evidence, line: Line) -> bool:
    """Whether the database knows that this attempt may still be running."""
    row: LedgerRow | None = one.ledger.get(line.slot) if line.slot else None
    if row is None:
        return False
    completed = (
        one.rule.completes and row.outcome == Outcome.SUCCEEDED and row.token == line.token
    )
    return (
        completed
        or row.lost + row.aborted > 0
        or row.outcome in (Outcome.LOST, Outcome.DEAD, Outcome.CANCELLED)
    )


# -- the sum --------------------------------------------------------------------------------------


def _tally(one: Evidence, broken: Sequence[Finding]) -> Tally:
    outcomes = Counter(row.outcome for row in one.ledger.values() if row.finished)
    laws = Counter(finding.law for finding in broken)
    return Tally(
        due=len(_due(one)),
        ran=len(_by_slot(one)),
        succeeded=outcomes[Outcome.SUCCEEDED],
        failed=outcomes[Outcome.FAILED],
        taken_over=sum(
            row.lost > 0 and row.outcome != Outcome.LOST for row in one.ledger.values()
        ),
        lost=outcomes[Outcome.LOST],
        dead=outcomes[Outcome.DEAD],
        cancelled=outcomes[Outcome.CANCELLED],
        skipped=outcomes[Outcome.SKIPPED] + sum(gap.count for gap in one.gaps),
        missing=laws["missing"] + laws["vanished"],
        twice=laws["twice"] + laws["double"],
    )
