"""The real thing beside its model: each step is done to both, and then they are compared slot by
slot.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from tests.kit.records import PAUSED_KEY, AttemptOutcome
from tests.kit.store import LedgerFence
from tests.model.comparison import Comparison, shown
from tests.model.contract import BEAT, LEASE, POLL, Course
from tests.model.operations import Operated
from tests.model.policies import Terms
from tests.model.timeline import Timeline, Times, every

from slotwise import ClaimLost, Disabled, job
from slotwise.operations import Operations
from slotwise.spi import (
    Claim,
    ClaimLostEvent,
    Database,
    HandedBackEvent,
    Reaped,
    define,
    tables,
)
from slotwise.testing import ManualClock, ManualWorker

NOON = datetime(2026, 1, 1, 12, 0, 0, 250000, tzinfo=UTC)
JOB = "job"
#: What ids are made of, so that a script that is played again meets the same ones.
CHANCE = random.Random()


@dataclass
class Member:
    """A worker process; ``running``: attempts that have begun."""

    worker: ManualWorker
    frozen: bool = False
    running: list[Claim] = field(default_factory=list)


class Cluster:
    """Two workers, one job, and the model of that job."""

    def __init__(
        self, database: Database, terms: Terms, times: Times, *, size: int = 2
    ) -> None:
        self.database, self.times = database, times
        self.terms = terms = replace(terms, wait=_spread_of(terms))
        self._clear()
        CHANCE.seed(0)
        self.clock = ManualClock(NOON)
        self.revision = 1
        self.courses: dict[tuple[str, str, int], Course] = {}
        self.dead: set[str] = set()
        self.model = Operated(terms, Timeline(NOON, times), NOON)
        self.members = [self._hire() for _ in range(size)]
        self._stranger = ManualWorker(
            [job(name="other", schedule=Disabled())(print)], database, self.clock
        )

    def _clear(self) -> None:
        """The tables without a row."""
        found = tables(
            self.database.settings.table_prefix, self.database.settings.schema
        )
        with self.database.main.begin() as connection:
            for table in (
                found.tasks,
                found.slots,
                found.gaps,
                found.controls,
                found.workers,
            ):
                connection.execute(table.delete())
            connection.execute(
                found.meta.delete().where(found.meta.c.key == PAUSED_KEY)
            )

    def _hire(self) -> Member:
        """A process that starts, and plans."""
        worker = ManualWorker(
            [self.terms.declare(JOB, self.times)],
            self.database,
            self.clock,
            heartbeat_interval=BEAT,
            poll_interval=POLL,
            threads=50,
            worker_name="w",
        )
        # How much a worker claims after claims that waited in vain is not the contract's: here,
        # always all that is due.
        poller = worker._worker.poller
        sees = poller.situation
        poller.situation = lambda: sees()._replace(queued_at=-math.inf)  # type: ignore[method-assign]
        self._acts(worker).plan(str(self.revision))
        return Member(worker)

    @property
    def operations(self) -> Operations:
        return self._acts(self.members[0].worker).client.operations

    @property
    def anybody(self) -> Operations:
        """Operations from where the job's code is not known."""
        return Operations(lambda: self._acts(self._stranger).store)

    def _acts(self, worker: ManualWorker) -> ManualWorker:
        """Rules 1 and 2: a row that is let go waits for a poll interval of the worker that acts
        now.
        """
        self.model.poll = worker.store.poll
        return worker

    # -- time -------------------------------------------------------------------------------------

    def tick(self, by: timedelta) -> None:
        """Time passes; who is awake goes on to renew what it holds."""
        while by > timedelta(0):
            step = (
                min(by, BEAT * 5 / 6)
                if any(course.holder for course in self.model.courses)
                else by
            )
            self.model.now = self.clock.tick(step)
            by -= step
            for member in self.members:
                if not member.frozen:
                    self.beat(member)

    def instants(self) -> list[datetime]:
        """The next at which something may happen: dues, slots, ends of holds and leases, and what
        is too late.
        """
        model, terms, wait = self.model, self.terms, self.terms.wait
        slots = model.timeline.slots(model.now + 10 * BEAT)[-40:]
        found = [slot + wait for slot in slots]
        found += [
            slot + wait + late
            for slot in slots
            for late in (terms.start_within, terms.window)
            if late
        ]
        found += [slot + wait + POLL for slot in slots if terms.detaches]
        found += [model.unheld_since] if model.unheld_since is not None else []
        for course in model.courses:
            found.append(
                course.due
                if course.holder is None
                else (course.beat or model.now) + LEASE
            )
        later = sorted({one for one in found if one > model.now})
        return later[:4]

    def beat(self, member: Member) -> None:
        member.worker.beat()
        for course in self.model.courses:
            if course.holder == member.worker.name:
                course.beat, course.told = (
                    self.model.now,
                    course.called_off is not None,
                )

    def reap(self) -> None:
        """The survivors look, until whoever has been silent for long is known to be dead."""
        for _ in range(3):
            self.tick(BEAT)
            for member in self.members:
                if not member.frozen:
                    for event in self._acts(member.worker).reap():
                        self._took_over(event)

    def _took_over(self, event: Reaped) -> None:
        course = self.courses[event.holder, event.id, event.token]
        assert (course.holder, course.token) == (event.holder, event.token), (
            f"{event} took what nobody held"
        )
        assert course.beat is not None
        assert self.model.now - course.beat >= LEASE, f"{event} took from the living"
        self.model.taken_over(course)
        if (
            course.holder is None
            and course.lost > 1
            and not self.model.fates[course.slot].final
        ):
            self._rests(course)

    @property
    def _comparison(self) -> Comparison:
        return Comparison(self.members[0].worker.store, self.model)

    def _rests(self, course: Course) -> None:
        """From the second loss on it rests, for a time that only the row knows."""
        due = next(
            row[5]
            for slot, row in self._comparison.rows().items()
            if slot == course.slot
        )
        earliest = (
            course.due
            if course.due > self.model.now
            else self.model.now + timedelta(seconds=5)
        )
        assert (
            earliest <= due <= max(earliest, self.model.now + timedelta(seconds=7.5))
        ), f"rests until {due}"
        course.due = due

    # -- what workers do --------------------------------------------------------------------------

    def poll(self, member: Member) -> None:
        name, due = member.worker.name, self.model.due()
        claims = {claim.slot: claim for claim in self._acts(member.worker).poll()}
        expected = {}
        for course in due:
            course.told = course.called_off is not None
        for course in due:
            if course.lost and course.slot not in claims:
                continue  # what was lost before is taken one at a time
            begun = self.model.claim(course, name)
            if begun is not None:
                expected[begun.slot] = (begun.attempt, begun.collapsed)
                if begun.slot in claims:
                    begun.token = claims[begun.slot].token
                    self.courses[
                        name, claims[begun.slot].row.task_instance, begun.token
                    ] = begun
        found = {
            slot: (claim.row.attempt, claim.row.collapsed)
            for slot, claim in claims.items()
        }
        assert found == expected, f"claimed {shown(found)}, expected {shown(expected)}"

    def _held(self, claim: Claim) -> Course | None:
        """Whom the claim is for, if it stands."""
        course = self.courses[claim.holder, claim.row.task_instance, claim.token]
        return (
            course
            if (course.holder, course.token) == (claim.holder, claim.token)
            else None
        )

    def _is_fresh(self, course: Course) -> bool:
        """Whether its holder has reason to believe in it, and has not let it wait for long."""
        assert course.beat is not None
        assert course.claimed is not None
        return (
            self.model.now - course.beat < LEASE - BEAT
            and self.model.now - course.claimed < BEAT
        )

    def begin(self, member: Member, claim: Claim) -> None:
        course = self._held(claim)
        is_fresh = course is not None and self._is_fresh(course)
        if self._acts(member.worker).begin(claim):
            assert course is not None or not self.terms.gives_up, (
                "started without a claim"
            )
            assert course is None or not course.told, (
                "started though it was called off"
            )
            if course is not None and self.terms.gives_up:
                assert self.model.fates[course.slot].outcome == "claimed", (
                    "a second start"
                )
                self.model.marked(course)
            member.running.append(claim)
            return
        assert course is None or not is_fresh or course.called_off, (
            "refused to start what it may"
        )
        ended = member.worker.settle()
        if course is None:
            assert all(isinstance(event, ClaimLostEvent) for event in ended)
        else:
            reasons = [
                event.reason for event in ended if isinstance(event, HandedBackEvent)
            ]
            self.model.handed_back(course, reasons[0] if reasons else "")

    def end(
        self,
        member: Member,
        claim: Claim,
        outcome: AttemptOutcome,
        settled_after: timedelta = timedelta(0),
    ) -> Course | None:
        """The handler has ended; the course, if that still counts."""
        course = self._held(claim)
        member.running.remove(claim)
        member.worker.finish(claim, outcome)
        if course is not None:
            self.model.returned(course)
        self.tick(settled_after)
        ended = self._acts(member.worker).settle()
        lost = any(isinstance(event, ClaimLostEvent) for event in ended)
        assert lost == (course is None), f"{claim.slot}: {ended}"
        return course

    def complete(self, member: Member, claim: Claim) -> bool:
        """``complete_in``, in a transaction of its own; whether it went in."""
        course = self._held(claim)
        try:
            with self.database.main.begin() as connection:
                LedgerFence(member.worker.store).complete_in(claim, connection)
        except ClaimLost:
            assert course is None or course.completed, (
                "refused to complete what it held"
            )
            return False
        assert course is not None, "completed what was not its own"
        assert not course.completed, "completed it twice"
        course.completed = True
        fate = self.model.fates[course.slot]
        fate.outcome, fate.final = "succeeded", True
        return True

    def crash(self, member: Member) -> None:
        """It ends like a killed process; another takes its place at once."""
        member.worker.crash()
        self.dead.add(member.worker.name)
        self.members[self.members.index(member)] = self._hire()

    def redeploy(self, times: Times) -> None:
        self.times, self.revision = times, self.revision + 1
        self.model.redeploy(times)
        self.plan()

    def plan(self) -> None:
        """A process of the newest release starts, and ends again."""
        self._hire().worker.crash()

    def compare(self) -> None:
        """Ledger, gaps and rows say what the model says, slot by slot."""
        self._comparison.check()


def _spread_of(terms: Terms) -> timedelta:
    """How much a spread is, follows from the job's name, and is the same for all its schedules."""
    schedule = define(terms.declare(JOB, every(60))).schedule
    assert schedule is not None
    return schedule.wait(NOON)
