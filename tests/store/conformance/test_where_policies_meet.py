"""The canonical cases of overlap and catch-up, played by a worker on each database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
import tenacity
from tests.kit.dialect import KINDS
from tests.kit.records import FOREVER, Failed, Snoozed, Succeeded
from tests.model.canonical_cases import (
    ALL,
    CASES,
    COLUMNS,
    FIRST,
    LATEST,
    NONE,
    Case,
    Play,
    parse,
)

from slotwise import CatchUp, Every, Overlap, Retry, job
from slotwise.spi import Claim, Database, Outcome, Row
from slotwise.testing import ManualClock, ManualWorker

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
LETTERS = {"overlap": "o", "late": "l", "collapsed": "c", "paused": "p"}
OVERLAPS = {
    "skip": lambda case: Overlap.skip(),
    "queue": lambda case: Overlap.queue(case.places),
    "queue_all": lambda case: Overlap.queue_all(),
    "allow": lambda case: Overlap.allow(case.places),
    "cancel_previous": lambda case: Overlap.cancel_previous(),
}


def at(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


def seconds_of(instant: datetime | None) -> float:
    assert instant is not None
    return (instant - EPOCH).total_seconds()


def span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


class Product:
    """Plays a case: a worker whose loops are called by hand, and the next one where it is
    killed.
    """

    def __init__(self, database: Database, case: Case, column: str) -> None:
        self.database, self.case, self.column = database, case, column
        self.clock = ManualClock(at(case.begin))
        self.every = case.every
        self.held: dict[float, Claim] = {}
        self.lost: dict[float, Row] = {}
        self.worker = self._worker()
        self.worker.plan()
        self.due = self.clock.now()

    def _worker(self) -> ManualWorker:
        case = self.case
        catch_up = {
            NONE: CatchUp.none(grace=timedelta(seconds=case.grace)),
            LATEST: CatchUp.latest(),
            FIRST: CatchUp.first(),
            ALL: CatchUp(
                "all", max=case.max, window=span(case.window), pace=span(case.pace)
            ),
        }[self.column]
        policies: dict[str, Any] = {
            "overlap": OVERLAPS[case.overlap](case),
            "start_within": span(case.start_within),
            "on_lost": "give_up" if case.gives_up else "rerun",
        }
        if case.attempts > 1:
            wait = timedelta(seconds=case.retry_pause)
            policies["retry"] = _every(wait, case)
        subject = job(
            name="played",
            schedule=Every(timedelta(seconds=self.every)),
            catch_up=catch_up,
            **policies,
        )(lambda ctx: None)
        return ManualWorker(
            [subject],
            self.database,
            self.clock,
            poll_interval=timedelta(seconds=case.poll),
            heartbeat_interval="20s",
            missed_heartbeats_limit=3,
        )

    def pass_to(self, instant: float) -> None:
        self.clock.tick(at(instant) - self.clock.now())

    def look(self) -> list[tuple[float, int]]:
        started: list[tuple[float, int]] = []
        while (
            self.clock.now() >= self.due
        ):  # one that finds nothing to start may have moved the row on
            for claim in self.worker.poll():
                assert self.worker.begin(claim)
                self.held[seconds_of(claim.slot)] = claim
                started.append((seconds_of(claim.slot), claim.row.attempt))
            self.learn_due()
        return started

    def learn_due(self) -> None:
        """A look before that would find nothing; a case has thousands of them."""
        pause = self.worker.store.due.next_due(["played"])
        self.due = FOREVER if pause is None else self.clock.now() + pause

    def returned(self, slot: float) -> None:
        claim = self.held.pop(slot)
        run = self.case.run(slot, claim.row.attempt)
        ends: dict[str, Outcome] = {
            "succeed": Succeeded(),
            "fail": Failed("no"),
            "snooze": Snoozed(timedelta(seconds=run.pause)),
        }
        assert self.worker.finish(claim, ends[run.ends])

    def settle(self, slot: float, ends: str, pause: float) -> None:
        self.worker.settle()
        self.learn_due()

    def kill(self, slot: float, last_beat: float, *, has_completed: bool) -> None:
        claim, tables = self.held.pop(slot), self.worker.store.tables
        mine = [
            tables.tasks.c.task_name == claim.row.task_name,
            tables.tasks.c.slot == at(slot),
            tables.tasks.c.picked,
        ]
        with self.database.main.begin() as connection:
            connection.execute(
                tables.tasks.update().where(*mine).values(last_heartbeat=at(last_beat))
            )
            if has_completed:
                done = tables.slots.update().where(tables.slots.c.slot == at(slot))
                connection.execute(
                    done.values(outcome="succeeded", finished=self.clock.now())
                )
        self.worker.crash()
        self.worker = self._worker()

    def take_over(self, slot: float) -> None:
        _, rows = self.worker.store.held.silent_rows(["played"])
        assert self.worker.store.settlements.take_over(
            [row for row in rows if row.slot == at(slot)]
        )
        self.learn_due()

    def pause(self) -> None:
        self.worker.client.operations.by("ada").pause("played")

    def resume(self, *, replay: bool) -> None:
        self.worker.client.operations.by("ada").resume("played", replay=replay)
        self.learn_due()

    def deploy(self, every: int) -> None:
        self.every = every
        held, self.worker = self.worker, self._worker()
        self.worker.plan()
        self.worker = held
        self.learn_due()

    def fates(self) -> dict[float, str]:
        tables, found = self.worker.store.tables, {}
        slots, gaps = tables.slots.c, tables.gaps.c
        with self.database.main.connect() as connection:
            for slot, outcome, reason, attempts in connection.execute(
                sa.select(slots.slot, slots.outcome, slots.reason, slots.attempts)
            ):
                ran = "r" if attempts == 1 else f"#{attempts}"
                found[seconds_of(slot)] = (
                    ran if outcome == "succeeded" else LETTERS.get(reason, outcome)
                )
            for first, last, count, reason in connection.execute(
                sa.select(gaps.first_slot, gaps.last_slot, gaps.count, gaps.reason)
            ):
                step = (seconds_of(last) - seconds_of(first)) / (count - 1)
                for number in range(count):
                    assert (
                        found.setdefault(
                            seconds_of(first) + number * step, LETTERS[reason]
                        )
                        == LETTERS[reason]
                    )
        return dict(sorted(found.items()))


def _every(wait: timedelta, case: Case) -> Retry:
    return Retry(
        case.attempts, tenacity.wait_fixed(wait), past_next_slot=case.past_next_slot
    )


#: Two cases of hundreds of polls: with --all they are played by every way to catch up.
LONG = {"6b", "6c"}


@pytest.fixture(
    params=[pytest.param(kind, marks=pytest.mark.extended) for kind in KINDS[:-1]]
    + KINDS[-1:]
)
def database_kind(request: pytest.FixtureRequest) -> str:
    """What decides is the same code: 142 cases are first played where they take less time."""
    found: str = request.param
    return found


@pytest.mark.parametrize(
    ("number", "column"),
    [
        pytest.param(
            number,
            column,
            id=f"{number} {column}",
            marks=[pytest.mark.extended] if number in LONG and column != "all" else [],
        )
        for number, case in CASES.items()
        for column in COLUMNS
        if column in case.expected
    ],
)
def test_a_canonical_case(database: Database, number: str, column: str) -> None:
    """Each slot ends as the table says."""
    case = CASES[number]
    product = Product(database, case, column)
    Play(case, product).go()
    assert product.fates() == parse(case.expected[column], case.every)
