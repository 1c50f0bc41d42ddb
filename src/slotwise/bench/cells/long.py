"""Handlers that take their time, all side by side on one worker."""

from __future__ import annotations

from collections.abc import Iterator

from slotwise.bench.crew import Crew
from slotwise.bench.journal import expect_once
from slotwise.bench.readings import Reading
from slotwise.bench.run import Cell, Run
from slotwise.bench.slotwise_contender import SlotwiseFlood

TASKS = 200
MILLISECONDS = 1_000


def _long(run: Run) -> Iterator[Reading]:
    """From the first start to the last settlement: what one handler takes, if nobody waits for another."""
    contender, count = SlotwiseFlood("slotwise", takes=MILLISECONDS, threads=str(TASKS)), run.scaled(TASKS, 20)
    for number in range(1, run.rounds + 1):
        url = run.prepared(contender)
        contender.fill(url, count)
        run.server.settle("slotwise")
        with (
            run.server.connect("slotwise") as connection,
            Crew(run.server, contender.command(url), 1, capacity=2 * count + 100) as crew,
        ):
            crew.wait(lambda: crew.done() > 0, "the first had started")
            before = crew.sample()
            crew.wait(lambda: contender.is_done(connection), "all were settled")
            took = crew.sample().at - before.at
            crew.stop()
            checked = expect_once(crew.journals, range(1, count + 1), "long")
            starts = sorted(crew.journals[0].starts().values())
        figures = {"took_s": took, "starts_ms": (starts[-1] - starts[0]) / 1e6}
        yield Reading(cell="long", contender=contender.name, round=number, figures=figures, checked=checked)


LONG = Cell(name="long", title="200 tasks of one second each, one process with 200 threads", measure=_long)
