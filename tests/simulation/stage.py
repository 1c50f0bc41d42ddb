"""The ground that a simulated world stands on: workers, one clock, one store, what they say, and
the laws.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy.exc import DBAPIError
from tests.kit.events import Planned
from tests.kit.laws import Ledger
from tests.kit.records import Fence
from tests.simulation.agent import Agent, SimulatedWorker
from tests.simulation.cast import NOON, SCHEDULES, TAG, subjects
from tests.simulation.laws import Laws
from tests.simulation.operators import Operator
from tests.simulation.replies import Replies
from tests.simulation.trace import Trace

from slotwise import Schedule
from slotwise.spi import (
    Claim,
    ClaimLostEvent,
    Database,
    Event,
    HandedBackEvent,
    Reaped,
    Settled,
    define,
)
from slotwise.testing import ManualClock


@dataclass
class Stage:
    """What a seed decides, it decides here."""

    seed: int
    database: Database
    size: int = 3
    rounds: int = 150
    #: Whether the queue, alone, is once in a while put back from a backup.
    restores: bool = False
    #: In how many rounds without accidents everything must be done; most worlds need thirty.
    longest_calm: int = 300
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOON))

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.trace = Trace(self.seed)
        self.revision = 1
        self.schedule = SCHEDULES[0]
        definitions = {
            found.name: found for found in map(define, subjects(self.schedule))
        }
        #: In a third of the worlds the clock is never stepped on: there, whoever believes in a
        #: claim keeps it.
        self.steps_on = self.seed % 3 != 0
        self.laws = Laws(self.trace, definitions, after_restores=self.restores)
        jobs = [name for name, found in definitions.items() if found.is_job]
        self.operator = Operator(
            self.rng, self.laws.operations, jobs, self.laws.reopened
        )
        self.replies = Replies(self.database)
        self.agents: list[Agent] = []
        #: Left over from before a restore: they wake up, and believe in what they held.
        self.zombies: list[Agent] = []
        self.backup: list[dict[str, Any]] = []
        self.is_calm = False
        for number in range(self.size):
            self.agents.append(
                self._hire(f"w{number + 1}", self.revision, self.schedule)
            )

    def _hire(self, name: str, revision: int, schedule: Schedule) -> Agent:
        """A process that starts, and plans."""
        tags = frozenset({TAG} if name == "w1" else ())
        worker = SimulatedWorker(
            subjects(schedule),
            self.database,
            self.clock,
            threads=4,
            worker_name=name,
            tags=tags,
        )
        worker.spared = self.replies.spared
        agent = Agent(name, worker, revision, tags)
        self._plan(agent)
        return agent

    def _plan(self, agent: Agent) -> None:
        before = self._read(agent)
        for plan in agent.worker.plan(str(agent.revision)):
            if plan.change in ("added", "changed"):
                row = before.plan_row(plan.job)
                schedule = agent.worker.store.definitions[plan.job].schedule
                assert schedule is not None
                self.laws.planned(
                    plan.job, schedule, self.clock.now(), row and row["watermark"]
                )
        self._listen(agent)

    def _let_time_pass(self, seconds: float) -> None:
        self.clock.tick(timedelta(seconds=seconds))

    def _read(self, agent: Agent | None = None) -> Ledger:
        store = (agent or self.agents[0]).worker.store
        with store.transaction() as connection:
            return Ledger.read(connection, store.tables)

    def _lost(self, *, surely: bool = True) -> Any:
        """Now and then the reply to the next commit is lost, or its request. ``surely``: it is
        asked for afterwards.

        In memory there is nobody to ask.
        """
        is_unlucky = (
            self.rng.random() < 0.04
            and not self.is_calm
            and not (surely and self.replies.is_lossless)
        )
        return self.replies.lost(
            self.rng.choice(("reply", "reply", "request")) if is_unlucky else None
        )

    def _is_lost(self, agent: Agent, what: str, told: list[DBAPIError]) -> bool:
        if told:
            self._note(agent, f"hears nothing of {what}")
        return bool(told)

    def _note(self, agent: Agent, what: str, claim: Claim | None = None) -> None:
        name, slot = (claim.row.task_name, claim.slot) if claim else (None, None)
        self.trace.add(self.clock.now(), agent.name, what, name, slot)

    # -- what the workers say ---------------------------------------------------------------------

    def _listen(self, agent: Agent, alive: Collection[Fence] = ()) -> None:
        events, agent.heard = (
            agent.worker.events[agent.heard :],
            len(agent.worker.events),
        )
        for event in events:
            self._hear(agent, event, alive)

    def _hear(self, agent: Agent, event: Event, alive: Collection[Fence]) -> None:
        match event:
            case Planned():
                self.trace.add(
                    self.clock.now(), agent.name, f"plans: {event.change}", event.job
                )
            case Settled():
                self._tell(
                    agent, event, f"settled as {event.outcome} ({event.reason})"
                )
                self.laws.ended(event)
            case Reaped():
                self._tell(
                    agent,
                    event,
                    f"takes over from {event.holder.split(':')[0]}: {event.outcome}",
                )
                self.laws.ended(event)
                self.laws.taken_over(event, alive)
            case HandedBackEvent():
                self._tell(agent, event, f"hands back: {event.reason}")
                self.laws.claims_of.handed_back(event.job, event.token)
            case ClaimLostEvent():
                self._tell(agent, event, f"has lost its claim: {event.reason}")

    def _tell(self, agent: Agent, event: Any, what: str) -> None:
        self.trace.add(
            self.clock.now(),
            agent.name,
            f"{what}, token {event.token}",
            event.job,
            event.slot,
        )
