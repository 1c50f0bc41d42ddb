"""What a worker costs that has nothing to do."""

from __future__ import annotations

from collections.abc import Iterator

from slotwise.bench.crew import Crew
from slotwise.bench.readings import Reading
from slotwise.bench.run import Cell, Run
from slotwise.bench.slotwise_contender import Slotwise, fill_tasks
from slotwise.bench.usage import memory_of

SECONDS = 60.0


def _idle(run: Run) -> Iterator[Reading]:
    contender = Slotwise()
    url = run.prepared(contender)
    fill_tasks(url, 1)
    with Crew(run.server, contender.command(url), 1, capacity=10) as crew:
        crew.wait(lambda: crew.done() == 1, "the worker was up")
        crew.rest(1.5)
        run.server.forget_statements("slotwise")
        before = crew.sample()
        crew.rest(run.seconds(SECONDS))
        after, calls = crew.sample(), run.server.calls("slotwise")
        memory = memory_of(crew.pids[0])
        statements = run.server.statements("slotwise")
    length = after.at - before.at
    figures: dict[str, float] = {}
    if calls is not None:
        figures |= {"queries_per_s": calls[0] / length, "with_control_per_s": calls[1] / length}
    if after.client is not None and before.client is not None:
        figures["cpu_percent"] = (after.client - before.client) / length * 100
    if memory is not None:
        figures["rss_mib"] = memory
    yield Reading(cell="idle", contender="slotwise", figures=figures, statements=tuple(statements))


IDLE = Cell(name="idle", title="a worker with nothing to do", measure=_idle)
