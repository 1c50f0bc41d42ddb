"""How long a task, or a slot, waits for its start once it is due."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from slotwise.bench.app import OTHER
from slotwise.bench.crew import Crew
from slotwise.bench.journal import RanWrong, expect_once
from slotwise.bench.raw import Raw
from slotwise.bench.readings import Reading, distribution
from slotwise.bench.run import Cell, Contender, NotYet, Run, micros
from slotwise.bench.slotwise_contender import Slotwise, SlotwiseFlood, fill_tasks, registry_for
from slotwise.model.clock import elapsed

# -- from enqueue to start ---------------------------------------------------------------------------------------


LATENCY_SENT = 300
LATENCY_APART = 0.02
#: Longer than any poll interval.
LATENCY_LATEST = 60.0


def _latency(run: Run) -> Iterator[Reading]:
    contenders = [Raw(100, name="raw-listen"), Slotwise(), *run.peers]
    for number, contender in run.turns(contenders, min(run.rounds, 2)):
        try:
            yield _enqueue_to_start(run, contender, number)
        except NotYet as reason:
            yield Reading(cell="latency", contender=contender.name, round=number, note=f"not compared: {reason}")


def _enqueue_to_start(run: Run, contender: Contender, number: int) -> Reading:
    """Send tasks to an idle worker. The first, which opens connections, is checked but not measured."""
    count, url = run.scaled(LATENCY_SENT, 5), run.prepared(contender)
    sent: dict[int, int] = {}
    with (
        contender.sender(url) as send,
        Crew(run.server, contender.listening(url), 1, capacity=2 * count + 1000) as crew,
    ):
        send(count + 1)
        crew.wait(lambda: crew.done() >= 1, "the first task had started", LATENCY_LATEST)
        time.sleep(0.5)
        for number_sent in range(1, count + 1):
            time.sleep(LATENCY_APART)
            sent[number_sent] = time.time_ns()
            send(number_sent)
        crew.wait(lambda: crew.done() > count, "all had started", LATENCY_LATEST)
        starts = crew.journals[0].starts()
        crew.stop()
        checked = expect_once(crew.journals, range(1, count + 2), f"latency, {contender.name}")
    spread = tuple((starts[one] - at) / 1e6 for one, at in sent.items())
    return Reading(
        cell="latency", contender=contender.name, round=number, figures=distribution(spread), spread=spread,
        checked=checked,
    )  # fmt: skip


LATENCY = Cell(name="latency", title="enqueue to start, idle worker", measure=_latency)


# -- from slot to start ------------------------------------------------------------------------------------------


PUNCTUALITY_SLOTS = 200
PUNCTUALITY_APART = timedelta(milliseconds=100)
#: Until the first slot, in seconds: workers need it to start and plan.
PUNCTUALITY_AHEAD = 4.0
PUNCTUALITY_AHEAD_EACH = 4.0
#: How long, in seconds, to wait for a late slot. A job whose next slot comes due skips the one that it missed.
PUNCTUALITY_LATEST = 12.0


def _punctuality(run: Run) -> Iterator[Reading]:
    one, three = Slotwise(), Slotwise("slotwise ×3")
    rounds = min(run.rounds, 2)
    for number, contender in run.turns([Raw(100, name="raw-timer"), one, three, *run.peers], rounds):
        try:
            yield _slot_to_start(run, contender, number, 3 if contender is three else 1)
        except NotYet as reason:
            yield Reading(cell="punctuality", contender=contender.name, round=number, note=f"not compared: {reason}")


def _slot_to_start(run: Run, contender: Contender, number: int, processes: int) -> Reading:
    """Plan slots 37 ms after each tenth of a second, where no timer of a contender ticks."""
    count, url = run.scaled(PUNCTUALITY_SLOTS, 10), run.prepared(contender)
    ahead = run.seconds(PUNCTUALITY_AHEAD, 3) + processes * run.seconds(PUNCTUALITY_AHEAD_EACH, 3)
    first = datetime.now(UTC).replace(microsecond=37_000) + timedelta(seconds=ahead)
    due = [first + place * PUNCTUALITY_APART for place in range(count)]
    wanted = {micros(instant) for instant in due}
    end = elapsed() + (due[-1] - datetime.now(UTC)).total_seconds() + PUNCTUALITY_LATEST
    with Crew(run.server, contender.plan(url, due), processes, capacity=20 * count + 5000) as crew:
        crew.wait(lambda: elapsed() > end or wanted <= _started(crew), "all were due")
        crew.stop()
        expect_once(crew.journals, _started(crew), f"punctuality, {contender.name}")
        starts = [pair for journal in crew.journals for pair in journal.starts().items() if pair[0] in wanted]
    if not starts:
        raise RanWrong(f"punctuality, {contender.name}: no start within {PUNCTUALITY_LATEST:.0f} s of its slot")
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


# -- behind a flood of another task ------------------------------------------------------------------------------


FAIRNESS_FLOOD = 100_000
FAIRNESS_SENT = 40
#: All within a second, before the flood is over.
FAIRNESS_APART = 0.025
FAIRNESS_LATEST = 60.0

#: How long each handler of the flood takes, in milliseconds.
FAIRNESS_TAKES = (0, 50)


def _fairness(run: Run) -> Iterator[Reading]:
    for takes in FAIRNESS_TAKES:
        yield _behind_flood(run, takes)


def _behind_flood(run: Run, takes: int) -> Reading:
    """Send tasks behind the flood. Their ids are negative, which tells them from those of the flood."""
    contender = SlotwiseFlood(f"slotwise, {takes} ms", takes=takes)
    url, flood, count = run.prepared(contender), run.scaled(FAIRNESS_FLOOD, 500), run.scaled(FAIRNESS_SENT, 4)
    fill_tasks(url, flood)
    registry, sent = registry_for(url), dict[int, int]()
    try:
        with Crew(run.server, contender.command(url), 1, capacity=2 * (flood + count) + 1000) as crew:
            crew.wait(lambda: crew.done() >= 20, "the flood had begun", FAIRNESS_LATEST)
            for number in range(1, count + 1):
                time.sleep(FAIRNESS_APART)
                sent[-number] = time.time_ns()
                registry.client.schedule(OTHER, id=str(-number))
            crew.wait(lambda: sent.keys() <= crew.journals[0].starts().keys(), "all had started", FAIRNESS_LATEST)
            starts, done = crew.journals[0].starts(), crew.done()
            crew.stop()
    finally:
        registry.database.close()
    if done >= flood + count and run.scale >= 1:
        raise RanWrong("the flood was over before all had started; this run proves nothing")
    spread = tuple((starts[one] - at) / 1e6 for one, at in sent.items())
    return Reading(cell="fairness", contender=contender.name, figures=distribution(spread), spread=spread)


FAIRNESS = Cell(name="fairness", title="a row of another task, behind 100,000 due rows of one", measure=_fairness)
