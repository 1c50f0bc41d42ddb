"""The verdict over a run: were the laws kept, and do database and handlers agree?

log = HandlerLog(Path("run.log"))  # in every handler: with log.attempt(ctx): …
verdict = judge(gather(connection, registry.jobs, log))
verdict.clean, verdict.findings, verdict.tally
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain, pairwise

from slotwise.demo.evidence import OK, Evidence, LedgerRow, LogLine, PlanRow, Rule
from slotwise.spi import Outcome
from slotwise.testing.accounting import (
    Gap,
    in_two_places,
    miscounted,
    missing,
    phantoms,
)

TICK = timedelta(microseconds=1)


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
            **{
                name: getattr(self, name) + getattr(other, name)
                for name in self.__slots__
            }
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
    waiting = (plan.slot, *one.detached)
    for row in one.ledger.values():
        if row.is_planned and row.finished is None and row.slot not in waiting:
            yield "open", row.slot, f"left behind as {row.outcome}"
    if until is not None:
        yield from _late(one, plan, until)


def _late(one: Evidence, plan: PlanRow, until: datetime) -> _Broken:
    schedule = one.rule.schedule
    due = schedule.latest_before(until + TICK, floor=plan.planned)
    if due is None or plan.slot is None or schedule.from_end:
        return
    if plan.slot <= due:
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
    """Each slot is in one place: the test kit's own judgement."""
    due = _due(one)
    rows = sorted(slot for slot, row in one.ledger.items() if row.is_planned)
    known = {*one.ledger, *one.detached}
    gaps = sorted(Gap(gap.first, gap.last, gap.count) for gap in one.gaps)
    awaited = [one.plan.slot] if one.plan and one.plan.slot else []
    laws = {
        "missing": [missing(due, known, gaps)],
        "phantom": [phantoms([*due, *awaited], rows)],
        "double": [
            in_two_places(sorted({*rows, *one.detached}), gaps),
            miscounted(gaps, lambda gap: _count(one, gap)),
        ],
    }
    for law, found in laws.items():
        for slot, text in chain(*found):
            yield law, slot, text


def _count(one: Evidence, gap: Gap) -> int:
    return one.rule.schedule.count_between(gap.first - TICK, gap.last)


def _chain(one: Evidence) -> _Broken:
    """Where the end of a run defines the next slot, each slot follows from the end before it."""
    rows = [one.ledger[slot] for slot in _due(one)]
    following = [row.slot for row in rows[1:]]
    waits_for = one.plan.slot if one.plan else None
    if waits_for is not None and waits_for not in one.ledger:
        following.append(waits_for)
    for row, slot in zip(rows, following, strict=False):
        wanted = one.rule.schedule.next_after(row.finished) if row.finished else None
        # With complete_in, the run's end and the settlement's time differ.
        is_early = wanted is not None and wanted < slot and one.rule.completes
        if wanted != slot and not is_early:
            text = wanted.isoformat() if wanted else "nothing"
            yield "missing", slot, f"after the end before it {text} was due"


# -- the handlers' log: no start too many ---------------------------------------------------------


def _by_slot(one: Evidence) -> dict[datetime, list[LogLine]]:
    """The starts of each slot, in the order of their tokens."""
    starts: dict[datetime, list[LogLine]] = defaultdict(list)
    for line in sorted(one.log, key=lambda line: line.token):
        if line.mark == "start" and line.slot is not None:
            starts[line.slot].append(line)
    return starts


def _ends(one: Evidence) -> dict[_Attempt, LogLine]:
    return {_attempt(line): line for line in one.log if line.mark == "end"}


def _attempt(line: LogLine) -> _Attempt:
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
        for text in _too_many(one.rule, row, starts, ends):
            yield "twice", slot, text


def _too_many(
    rule: Rule,
    row: LedgerRow,
    starts: Sequence[LogLine],
    ends: Mapping[_Attempt, LogLine],
) -> Iterator[str]:
    count = len(starts)
    excused = row.lost + row.aborted
    told = f"of which {row.lost} lost and {row.aborted} aborted"
    if rule.gives_up and count > 1:
        yield f"{count} starts of a job that gives up"
    if count > row.attempts or len({line.attempt for line in starts}) < count:
        yield f"{count} starts in {row.attempts} attempts"
    if count > rule.tries + excused:
        yield f"{count} starts {told}"
    repeated = 0
    for line in starts[:-1]:
        end = ends.get(_attempt(line))
        repeated += end is None or end.note == OK
    if repeated > excused:
        yield f"{repeated} starts that had not failed were repeated, {told}"


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
    by_slot = _by_slot(one)
    planned = [lines for slot, lines in by_slot.items() if _is_planned(one, slot)]
    starts = [line for lines in planned for line in lines]
    yield from _tokens(one, sorted(starts, key=lambda line: (line.slot, line.attempt)))
    yield from _overlaps(one, sorted(starts, key=lambda line: line.at))


def _tokens(one: Evidence, starts: Iterable[LogLine]) -> _Broken:
    for before, after in pairwise(starts):
        is_ordered = one.rule.abreast == 1 or after.slot == before.slot
        if is_ordered and after.token <= before.token:
            yield "token", after.slot, f"{after.token} comes after {before.token}"


def _overlaps(one: Evidence, starts: Iterable[LogLine]) -> _Broken:
    ends = _ends(one)
    running = list[LogLine]()
    for line in starts:
        running = [
            other for other in running if _runs_at(line.at, ends.get(_attempt(other)))
        ]
        # A frozen process may enter its handler after its loss was noticed and later slots have
        # started.
        is_let_go = _is_let_go(one, line)
        is_zombie = is_let_go and all(other.token > line.token for other in running)
        if len(running) >= one.rule.abreast and not is_zombie:
            tokens = ", ".join(str(each.token) for each in running)
            yield "overlap", line.slot, f"started while {tokens} ran"
        if not is_let_go:
            running.append(line)


def _runs_at(at: datetime, end: LogLine | None) -> bool:
    return end is None or end.at > at


def _is_planned(one: Evidence, slot: datetime) -> bool:
    return slot in one.ledger and one.ledger[slot].is_planned


def _is_let_go(one: Evidence, line: LogLine) -> bool:
    """Whether the database knows that this attempt may still be running."""
    row: LedgerRow | None = one.ledger.get(line.slot) if line.slot else None
    if row is None:
        return False
    completed = (
        one.rule.completes
        and row.outcome == Outcome.SUCCEEDED
        and row.token == line.token
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
