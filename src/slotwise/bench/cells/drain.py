"""How fast due rows are run: a backlog of one-time tasks, the same by two workers, and due slots of many jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from slotwise.bench.contender import Contender
from slotwise.bench.crew import Crew
from slotwise.bench.journal import expect_once
from slotwise.bench.raw import Raw
from slotwise.bench.readings import Reading
from slotwise.bench.run import Cell, Run
from slotwise.bench.slotwise_contender import Slotwise, SlotwiseJobs

TASKS = 50_000
JOBS = 10_000
#: With payloads of 100 KB: 500 MB.
LARGE = 5_000

#: slotwise as it comes, and in the setting that suits handlers that do nothing.
DEFAULT = Slotwise("slotwise-default")
BEST = Slotwise("slotwise", threads="100")


def drain(run: Run, cell: str, contender: Contender, number: int, count: int, processes: int = 1) -> Reading:
    """Fill, start the workers, and measure from when all are warm until the last row is settled."""
    count = max(round(count * contender.share), 20)
    family, url = contender.family, run.prepared(contender)
    contender.fill(url, count)
    run.server.settle(family)
    run.server.forget_statements(family)
    with (
        run.server.connect(family) as connection,
        Crew(run.server, contender.command(url), processes, capacity=2 * count + 1000) as crew,
    ):
        crew.warm(count)
        before = crew.sample()
        crew.wait(lambda: crew.done() >= count, "all had started")
        crew.wait(lambda: contender.is_done(connection), "all were settled")
        after = crew.sample()
        statements = run.server.statements(family)
        crew.stop()
        checked = expect_once(crew.journals, range(1, count + 1), f"{cell}, {contender.name}")
    is_long_enough = after.done - before.done >= count // 4
    return Reading(
        cell=cell,
        contender=contender.name,
        round=number,
        figures=after.since(before) if is_long_enough else {},
        checked=checked,
        note="" if is_long_enough else "too short: most was done before everybody was warm",
        statements=tuple(statements),
    )


def _backlog(run: Run) -> Iterator[Reading]:
    for number, contender in run.turns([Raw(100), Raw(500), BEST, DEFAULT, *run.peers]):
        yield drain(run, "backlog", contender, number, run.scaled(TASKS, 200))


def _payloads(run: Run) -> Iterator[Reading]:
    large = Slotwise("slotwise, 100 KB", size=100_000, threads="100")
    for number, contender in run.turns([large, BEST]):
        yield drain(run, "payloads", contender, number, run.scaled(LARGE, 20))


def _two_workers(run: Run) -> Iterator[Reading]:
    """One worker again, in the same rounds: what counts is the ratio."""
    pairs: Sequence[tuple[Contender, int, str]] = [
        *((one, processes, f"{one.name} ×{processes}") for one in (Raw(500), BEST) for processes in (1, 2)),
        *((peer, 2, f"{peer.name} ×2") for peer in run.peers if not peer.is_single),
    ]
    for number in range(1, run.rounds + 1):
        for contender, processes, name in pairs:
            found = drain(run, "two-workers", contender, number, run.scaled(TASKS, 200), processes)
            yield _renamed(found, name)


def _renamed(reading: Reading, name: str) -> Reading:
    return replace(reading, contender=name)


def _slots(run: Run) -> Iterator[Reading]:
    contenders = [
        Raw(100, "slots"), Raw(500, "slots"), SlotwiseJobs(threads="1000"), SlotwiseJobs("slotwise-100", threads="100"),
        SlotwiseJobs("slotwise-10", threads="10"),
    ]  # fmt: skip
    for number, contender in run.turns(contenders):
        yield drain(run, "slots", contender, number, run.scaled(JOBS, 100))


BACKLOG = Cell(name="backlog", title="backlog of one-time tasks, one worker process", measure=_backlog)
TWO_WORKERS = Cell(name="two-workers", title="the same backlog, two worker processes", measure=_two_workers)
PAYLOADS = Cell(name="payloads", title="5,000 tasks with payloads of 100 KB, and of two bytes", measure=_payloads)
SLOTS = Cell(name="slots", title="due slots of 10,000 jobs, with their ledger rows, one process", measure=_slots)
