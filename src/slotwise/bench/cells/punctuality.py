"""How late slots start: staggered by 100 ms over some 20 seconds, with a poll interval of 10 s."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from slotwise.bench.contender import Contender, NotYet, micros
from slotwise.bench.crew import Crew
from slotwise.bench.journal import RanWrong, expect_once
from slotwise.bench.raw import Raw
from slotwise.bench.readings import Reading, distribution
from slotwise.bench.run import Cell, Run
from slotwise.bench.slotwise_contender import Slotwise
from slotwise.clock import elapsed

SLOTS = 200
APART = timedelta(milliseconds=100)
#: Until the first slot, in seconds: workers start, plan, and find it.
AHEAD = 4.0
AHEAD_EACH = 4.0
#: How long, in seconds, a late one is waited for. A job whose next slot comes due skips the one that it missed.
LATEST = 12.0


def _punctuality(run: Run) -> Iterator[Reading]:
    one, three = Slotwise(), Slotwise("slotwise ×3")
    rounds = min(run.rounds, 2)
    for number, contender in run.turns([Raw(100, name="raw-timer"), one, three, *run.peers], rounds):
        try:
            yield _one(run, contender, number, 3 if contender is three else 1)
        except NotYet as reason:
            yield Reading(cell="punctuality", contender=contender.name, round=number, note=f"not compared: {reason}")


def _one(run: Run, contender: Contender, number: int, processes: int) -> Reading:
    """At off-beat instants, 37 ms after each tenth: nobody's own timer ticks there."""
    count, url = run.scaled(SLOTS, 10), run.prepared(contender)
    ahead = run.seconds(AHEAD, 3) + processes * run.seconds(AHEAD_EACH, 3)
    first = datetime.now(UTC).replace(microsecond=37_000) + timedelta(seconds=ahead)
    due = [first + place * APART for place in range(count)]
    wanted = {micros(instant) for instant in due}
    end = elapsed() + (due[-1] - datetime.now(UTC)).total_seconds() + LATEST
    with Crew(run.server, contender.plan(url, due), processes, capacity=20 * count + 5000) as crew:
        crew.wait(lambda: elapsed() > end or wanted <= _started(crew), "all were due")
        crew.stop()
        expect_once(crew.journals, _started(crew), f"punctuality, {contender.name}")
        starts = [pair for journal in crew.journals for pair in journal.starts().items() if pair[0] in wanted]
    if not starts:
        raise RanWrong(f"punctuality, {contender.name}: nothing started within {LATEST:.0f} s after it was due")
    spread = tuple(at / 1e6 - slot / 1e3 for slot, at in starts)
    return Reading(
        cell="punctuality",
        contender=contender.name,
        round=number,
        figures={**distribution(spread), "not_run": float(count - len(spread))},
        spread=spread,
        checked=len(spread),
    )


def _started(crew: Crew) -> set[int]:
    return {one for journal in crew.journals for one in journal.ids()}


PUNCTUALITY = Cell(
    name="punctuality", title="start minus slot, 1 and 3 workers, poll interval 10 s", measure=_punctuality
)
