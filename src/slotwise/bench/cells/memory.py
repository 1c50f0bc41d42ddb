"""How much memory a worker takes with a million due rows before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from slotwise.bench.cells.drain import BEST
from slotwise.bench.crew import Crew
from slotwise.bench.journal import RanWrong
from slotwise.bench.readings import Reading
from slotwise.bench.run import Cell, Run

ROWS = 1_000_000
SECONDS = 15.0


def _memory(run: Run) -> Iterator[Reading]:
    """It is not drained: what matters is the peak while it is at work."""
    count, url = run.scaled(ROWS, 500), run.prepared(BEST)
    BEST.fill(url, count)
    run.server.settle("slotwise")
    with Crew(run.server, BEST.command(url), 1, capacity=2 * count + 1000) as crew:
        crew.wait(lambda: crew.done() > 0, "the worker was up")
        end = crew.sample().at + run.seconds(SECONDS)
        crew.wait(lambda: crew.done() >= count or crew.sample().at > end, "it had worked for a while")
        peak = crew.peak()
        crew.stop()
        counted = Counter(crew.journals[0].ids())
    if len(counted) != counted.total():
        raise RanWrong("memory: a task started twice; this run proves nothing")
    figures = {"started": float(len(counted))} | ({} if peak is None else {"peak_mib": peak})
    yield Reading(cell="memory", contender=BEST.name, figures=figures, checked=len(counted))


MEMORY = Cell(name="memory", title="memory of a worker before 1,000,000 due rows", measure=_memory)
