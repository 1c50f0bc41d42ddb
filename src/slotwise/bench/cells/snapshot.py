"""Throughput while another session of the same database holds a snapshot, so that no dead row can be removed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from slotwise.bench.cells.drain import BEST
from slotwise.bench.crew import Crew, Sample
from slotwise.bench.journal import expect_once
from slotwise.bench.readings import Reading
from slotwise.bench.run import Cell, Run
from slotwise.bench.slotwise_contender import fill_tasks

#: What waits at any time: each task that has started is replaced by a new one.
WAITING = 20_000
BEFORE = 15.0
HELD = 120.0
#: Over how much of the end the rate under the snapshot is measured.
LAST = 20.0


class Feeder:
    """Keeps the queue at its length, from a thread of its own."""

    def __init__(self, url: str, crew: Crew, waiting: int) -> None:
        self._url, self._crew, self._waiting = url, crew, waiting
        self._stop = threading.Event()
        self.filled = 0
        self._thread = threading.Thread(target=self._feed, name="bench-feeder", daemon=True)

    @contextmanager
    def feeding(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    def _feed(self) -> None:
        while not self._stop.is_set():
            missing = self._crew.done() + self._waiting - self.filled
            if missing >= self._waiting // 40:
                fill_tasks(self._url, missing, first=self.filled + 1, after=timedelta(0))
                self.filled += missing
            self._stop.wait(0.02)


def _snapshot(run: Run) -> Iterator[Reading]:
    waiting, url = run.scaled(WAITING, 200), run.prepared(BEST)
    fill_tasks(url, waiting)
    run.server.settle("slotwise")
    with Crew(run.server, BEST.command(url), 1, capacity=12_000_000) as crew:
        feeder = Feeder(url, crew, waiting)
        feeder.filled = waiting
        with feeder.feeding():
            crew.warm(waiting)
            before = _rate(crew, run.seconds(BEFORE))
            with run.server.connect("slotwise") as holder, holder.transaction():
                holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                holder.execute("SELECT count(*) FROM scheduled_workers")
                crew.rest(run.seconds(HELD - LAST))
                held = _rate(crew, run.seconds(LAST))
        crew.wait(lambda: crew.done() >= feeder.filled, "all had started")
        crew.stop()
        checked = expect_once(crew.journals, range(1, feeder.filled + 1), "snapshot")
    for name, figures in (("before", before), ("held", held)):
        yield Reading(cell="snapshot", contender=name, figures=figures, checked=checked)


def _rate(crew: Crew, seconds: float) -> dict[str, float]:
    before: Sample = crew.sample()
    crew.rest(seconds)
    return crew.sample().since(before)


SNAPSHOT = Cell(name="snapshot", title="throughput while a snapshot is held for two minutes", measure=_snapshot)
