"""From the call that enqueues a due task to the start of its handler, on a worker that has nothing else to do."""

from __future__ import annotations

import time
from collections.abc import Iterator

from slotwise.bench.contender import Contender, NotYet
from slotwise.bench.crew import Crew
from slotwise.bench.journal import expect_once
from slotwise.bench.raw import Raw
from slotwise.bench.readings import Reading, distribution
from slotwise.bench.run import Cell, Run
from slotwise.bench.slotwise_contender import Slotwise

SENT = 300
APART = 0.02
#: Longer than any poll interval.
LATEST = 60.0


def _latency(run: Run) -> Iterator[Reading]:
    contenders = [Raw(100, name="raw-listen"), Slotwise(), *run.peers]
    for number, contender in run.turns(contenders, min(run.rounds, 2)):
        try:
            yield _one(run, contender, number)
        except NotYet as reason:
            yield Reading(cell="latency", contender=contender.name, round=number, note=f"not compared: {reason}")


def _one(run: Run, contender: Contender, number: int) -> Reading:
    """The first task only warms up: connections and statements are then made. All are checked."""
    count, url = run.scaled(SENT, 5), run.prepared(contender)
    sent: dict[int, int] = {}
    with (
        contender.sender(url) as send,
        Crew(run.server, contender.listening(url), 1, capacity=2 * count + 1000) as crew,
    ):
        send(count + 1)
        crew.wait(lambda: crew.done() >= 1, "the first task had started", LATEST)
        time.sleep(0.5)
        for number_sent in range(1, count + 1):
            time.sleep(APART)
            sent[number_sent] = time.time_ns()
            send(number_sent)
        crew.wait(lambda: crew.done() > count, "all had started", LATEST)
        starts = crew.journals[0].starts()
        crew.stop()
        checked = expect_once(crew.journals, range(1, count + 2), f"latency, {contender.name}")
    spread = tuple((starts[one] - at) / 1e6 for one, at in sent.items())
    return Reading(
        cell="latency", contender=contender.name, round=number, figures=distribution(spread), spread=spread,
        checked=checked,
    )  # fmt: skip


LATENCY = Cell(name="latency", title="enqueue to start, idle worker", measure=_latency)
