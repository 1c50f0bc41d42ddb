"""10,000 jobs that are due each second: how many slots run, how many do not."""

from __future__ import annotations

from collections.abc import Iterator

from slotwise.bench.cells.drain import JOBS
from slotwise.bench.crew import Crew
from slotwise.bench.readings import Reading
from slotwise.bench.run import Cell, Run
from slotwise.bench.slotwise_contender import SlotwiseSeconds

_COUNTS = """
SELECT count(*) FILTER (WHERE outcome = 'succeeded'), count(*) FILTER (WHERE outcome = 'skipped'),
       coalesce((SELECT sum(count) FROM scheduled_gaps), 0)
FROM scheduled_slots /* bench:watch */"""


def _seconds(run: Run) -> Iterator[Reading]:
    contender, count = SlotwiseSeconds(threads="100"), run.scaled(JOBS, 20)
    url, length = run.prepared(contender), run.seconds(20, 3)
    contender.fill(url, count)
    with (
        run.server.connect("slotwise") as connection,
        Crew(run.server, contender.command(url), 1, capacity=count * 120 + 1000) as crew,
    ):
        crew.wait(lambda: crew.done() >= count, "each job had run once")
        ran, skipped, gaps = connection.execute(_COUNTS).fetchone()
        before = crew.sample()
        crew.rest(length)
        after = crew.sample()
        ran_then, skipped_then, gaps_then = connection.execute(_COUNTS).fetchone()
    missed = int(skipped_then + gaps_then - skipped - gaps)
    figures = {**after.since(before), "ran": float(ran_then - ran), "not_run": float(missed)}
    yield Reading(cell="seconds", contender=contender.name, figures=figures)


SECONDS = Cell(name="seconds", title="10,000 jobs, each due every second, one process", measure=_seconds)
