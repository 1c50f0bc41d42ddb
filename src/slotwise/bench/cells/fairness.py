"""How long a row of another task waits while one task floods: from the call that enqueues it to its start."""

from __future__ import annotations

import time
from collections.abc import Iterator

from slotwise.bench.app import OTHER
from slotwise.bench.crew import Crew
from slotwise.bench.journal import RanWrong
from slotwise.bench.readings import Reading, distribution
from slotwise.bench.run import Cell, Run
from slotwise.bench.slotwise_contender import SlotwiseFlood, fill_tasks, registry_for

FLOOD = 100_000
SENT = 40
#: Together within a second: the flood is not to be over first.
APART = 0.025
LATEST = 60.0

#: How long each handler of the flood takes, in milliseconds.
TAKES = (0, 50)


def _fairness(run: Run) -> Iterator[Reading]:
    for takes in TAKES:
        yield _one(run, takes)


def _one(run: Run, takes: int) -> Reading:
    """The ids of the other task are below zero: what else has started is the flood."""
    contender = SlotwiseFlood(f"slotwise, {takes} ms", takes=takes)
    url, flood, count = run.prepared(contender), run.scaled(FLOOD, 500), run.scaled(SENT, 4)
    fill_tasks(url, flood)
    registry, sent = registry_for(url), dict[int, int]()
    try:
        with Crew(run.server, contender.command(url), 1, capacity=2 * (flood + count) + 1000) as crew:
            crew.wait(lambda: crew.done() >= 20, "the flood had begun", LATEST)
            for number in range(1, count + 1):
                time.sleep(APART)
                sent[-number] = time.time_ns()
                registry.client.schedule(OTHER, id=str(-number))
            crew.wait(lambda: sent.keys() <= crew.journals[0].starts().keys(), "all had started", LATEST)
            starts, done = crew.journals[0].starts(), crew.done()
            crew.stop()
    finally:
        registry.database.close()
    if done >= flood + count and run.scale >= 1:
        raise RanWrong("the flood was over before all had started; this run proves nothing")
    spread = tuple((starts[one] - at) / 1e6 for one, at in sent.items())
    return Reading(cell="fairness", contender=contender.name, figures=distribution(spread), spread=spread)


FAIRNESS = Cell(name="fairness", title="a row of another task, behind 100,000 due rows of one", measure=_fairness)
