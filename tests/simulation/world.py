"""A cluster in a box: several workers, one clock, one store, and accidents by seed.

Each worker is the engine's own, called one round of one loop at a time, in an order that the seed decides. Between
two calls anything may happen: it freezes and comes back as a zombie, it crashes, the database's clock is stepped, a
newer deploy arrives. The laws look on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import tenacity
from tests.simulation.agent import Agent, SimulatedWorker
from tests.simulation.laws import Laws
from tests.simulation.ledger import Ledger
from tests.simulation.trace import Trace

from slotwise.definition import define
from slotwise.errors import ClaimLost
from slotwise.events import ClaimLostEvent, Event, HandedBackEvent, Planned, Reaped, Settled
from slotwise.execution import Aborted, Claim, Failed, Fence, Outcome, Row, Succeeded
from slotwise.job import job, task
from slotwise.policies import Overlap, Retry
from slotwise.schedules import Cron, Disabled, Every, FixedDelay, Schedule
from slotwise.store.database import Database
from slotwise.store.fence import LedgerFence
from slotwise.testing import ManualClock

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BEAT = timedelta(seconds=10)

#: What the job "changing" is redeployed with.
SCHEDULES: list[Schedule] = [
    Every("1m"), Every("2m", anchor=NOON + timedelta(seconds=30)), Every("37s"), Cron("*/3 * * * *"), Disabled(),
]  # fmt: skip

#: Wrecks a worker's store: for tests of the laws themselves.
Sabotage = Callable[[SimulatedWorker], None]


def subjects(changing: Schedule) -> list[object]:
    """Jobs and tasks of every kind; the retry has no jitter, so that a seed says all."""
    retry = Retry(attempts=3, wait=tenacity.wait_fixed(4))
    return [
        job(name="rerun", schedule=Every("20s"))(print),
        job(name="retried", schedule=Every("45s"), retry=retry)(print),
        job(name="giving", schedule=Every("20s"), on_lost="give_up")(print),
        job(name="rarely", schedule=Every("150s"), on_lost="give_up")(print),
        job(name="delayed", schedule=FixedDelay("15s"))(print),
        job(name="apart", schedule=Every("20s"), spread="15s", min_interval="50s", retry=retry)(print),
        job(name="abreast", schedule=Every("20s"), overlap=Overlap.allow(2), retry=retry)(print),
        job(name="replaced", schedule=Every("20s"), overlap=Overlap.cancel_previous(), on_lost="give_up")(print),
        job(name="poison", schedule=Every("3m"), max_lost=2)(print),
        job(name="changing", schedule=changing)(print),
        task(name="mail", retry=retry)(print),
        task(name="once", on_lost="give_up")(print),
    ]


@dataclass
class World:
    """``run`` lives through the accidents of the seed, then calms down; raises LawBroken."""

    seed: int
    database: Database
    sabotage: Sabotage = lambda worker: None
    size: int = 3
    rounds: int = 150
    #: Whether the queue, alone, is once in a while put back from a backup.
    restores: bool = False
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOON))

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.trace = Trace(self.seed)
        self.revision = 1
        self.schedule = SCHEDULES[0]
        self.scheduled = 0
        definitions = {found.name: found for found in map(define, subjects(self.schedule))}
        #: In a third of the worlds the clock is never stepped on: there, whoever believes in a claim keeps it.
        self.steps_on = self.seed % 3 != 0
        self.laws = Laws(self.trace, definitions, after_restores=self.restores)
        self.agents: list[Agent] = []
        #: Left over from before a restore: they wake up, and believe in what they held.
        self.zombies: list[Agent] = []
        self.backup: list[dict[str, Any]] = []
        self.is_calm = False
        for number in range(self.size):
            self.agents.append(self._hire(f"w{number + 1}", self.revision, self.schedule))

    def run(self) -> Laws:
        for _ in range(self.rounds):
            self._let_time_pass(self.rng.choice((1, 2, 3, 5, 8, 13)) + self.rng.random())
            if self.rng.random() < 0.15:
                self._accident()
            for agent in self.rng.sample([*self.agents, *self.zombies], len(self.agents) + len(self.zombies)):
                self._act(agent)
            self.laws.check(self._read())
        self._calm_down()
        return self.laws

    # -- the outside --------------------------------------------------------------------------------------------

    def _hire(self, name: str, revision: int, schedule: Schedule) -> Agent:
        """A process that starts, and plans."""
        worker = SimulatedWorker(subjects(schedule), self.database, self.clock, threads=4, worker_name=name)
        self.sabotage(worker)
        agent = Agent(name, worker, revision)
        self._plan(agent)
        return agent

    def _plan(self, agent: Agent) -> None:
        before = {row["task_name"]: row for row in self._read(agent).rows}
        for plan in agent.worker.plan(str(agent.revision)):
            if plan.change in ("added", "changed"):
                row = before.get(plan.job)
                schedule = agent.worker.store.definitions[plan.job].schedule
                assert schedule is not None
                self.laws.planned(plan.job, schedule, self.clock.now(), row and row["watermark"])
        self._listen(agent)

    def _let_time_pass(self, seconds: float) -> None:
        self.clock.tick(timedelta(seconds=seconds))

    def _read(self, agent: Agent | None = None) -> Ledger:
        return Ledger.read((agent or self.agents[0]).worker.store)

    def _accident(self) -> None:
        agent = self.rng.choice(self.agents)
        accidents = [
            self._crash, self._freeze, self._lose_power, self._redeploy, self._restart, self._step_clock,
            self._schedule_tasks, self._schedule_tasks,
        ]  # fmt: skip
        self.rng.choice([*accidents, self._restore, self._restore] if self.restores else accidents)(agent)

    def _crash(self, agent: Agent) -> None:
        """A process ends at once; another one starts in its place after a while."""
        self._note(agent, "crashes")
        agent.worker.crash()
        agent.is_down, agent.running, agent.verdict = True, [], []
        agent.sleeps_until = self.clock.elapsed() + self.rng.choice((5, 15, 60))

    def _freeze(self, agent: Agent) -> None:
        """It does nothing for a while, and knows nothing of that when it goes on; often for longer than its lease."""
        if not agent.is_down:
            self._note(agent, "freezes")
            agent.sleeps_until = self.clock.elapsed() + self.rng.choice((15, 50, 61, 65, 75))

    def _lose_power(self, _: Agent) -> None:
        """All at once."""
        if self.rng.random() < 0.2:
            for agent in self.agents:
                if not agent.is_down:
                    self._crash(agent)

    def _strike(self, agent: Agent) -> None:
        """An accident at this very moment: after a claim, a start, an end, before its settlement."""
        if self.rng.random() < 0.08 and not self.is_calm:
            self.rng.choice((self._crash, self._freeze))(agent)

    def _redeploy(self, agent: Agent) -> None:
        """A newer release with another schedule; the workers of the older one go on until they are restarted."""
        self.revision += 1
        self.schedule = self.rng.choice(SCHEDULES)
        self._restart(agent)

    def _restart(self, agent: Agent) -> None:
        """An orderly end, and a start: of the newest release, or of the one it had."""
        if agent.is_down or not agent.is_awake():
            return
        self._note(agent, "drains and starts again")
        agent.worker.drain()
        for claim in list(agent.running):
            self._finish(agent, claim, Aborted("shutdown"))
        self._settle(agent)
        agent.worker.crash()
        self._replace(agent)

    def _replace(self, agent: Agent) -> None:
        """By a process of the newest release, or of the one that it was."""
        if self.rng.random() < 0.7 or agent.revision == self.revision:
            new = self._hire(agent.name, self.revision, self.schedule)
        else:
            old = agent.worker.store.definitions["changing"].schedule
            assert old is not None
            new = self._hire(agent.name, agent.revision, old)
        self.agents[self.agents.index(agent)] = new
        self._note(new, f"starts with revision {new.revision}")

    def _step_clock(self, _: Agent) -> None:
        """The database's clock, not the workers' sense of time."""
        back = (-90, -45, -20, -20, -300 if self.rng.random() < 0.2 else -10)
        by = timedelta(seconds=self.rng.choice((*back, 20, 90, 600) if self.steps_on else back))
        self.trace.add(self.clock.now(), "clock", f"is stepped by {by.total_seconds():+.0f} s")
        self.clock.set(self.clock.now() + by)

    def _schedule_tasks(self, agent: Agent) -> None:
        """Ids are used again, on purpose."""
        if agent.is_down:
            return
        for name in ("mail", "once"):
            number = self.rng.randrange(4)
            delay = timedelta(seconds=self.rng.randrange(30))
            agent.worker.client.schedule(name, number, id=f"{number}", in_=delay, if_exists="keep")

    def _restore(self, _: Agent) -> None:
        """The queue is put back as it was some time ago, the ledger is not; all workers are started anew.

        One that nobody could reach goes on as a zombie.
        """
        backup, self.backup = self.backup, [dict(row) for row in self._read().rows]
        if not backup or self.rng.random() < 0.3:
            return
        self.trace.add(self.clock.now(), "queue", "is restored")
        tables = self.agents[0].worker.store.tables
        with self.database.main.begin() as connection:
            connection.execute(tables.tasks.delete())
            connection.execute(tables.tasks.insert(), backup)
        self.laws.restored()
        for agent in list(self.agents):
            if not agent.is_down and not agent.is_awake():
                self.zombies.append(agent)
            self._replace(agent)

    # -- a worker's turn ----------------------------------------------------------------------------------------

    def _act(self, agent: Agent) -> None:
        """Some of its loops, in any order; a zombie that wakes up goes on where it was."""
        if not agent.is_awake():
            return
        if agent in self.zombies:
            self.zombies.remove(agent)
            turns = [self._end, self._settle, self._beat, self._execute]
        elif agent.is_down:
            self._replace(agent)
            return
        else:
            turns = [self._beat, self._watch, self._reap, self._poll, self._begin, self._end, self._settle]
        for turn in self.rng.sample(turns, len(turns)):
            if not agent.is_down and agent.is_awake() and self.rng.random() < 0.8:
                turn(agent)

    def _beat(self, agent: Agent) -> None:
        if agent.is_due(agent.beat_at):
            agent.beat_at = self.clock.elapsed()
            agent.worker.beat()
            self._listen(agent)

    def _watch(self, agent: Agent) -> None:
        agent.worker.watch()

    def _reap(self, agent: Agent) -> None:
        """At once, or with a pause between the look and the deed, in which everything may change."""
        if agent.verdict:
            if self.rng.random() < 0.5:
                self._execute(agent)
        elif agent.is_due(agent.looked_at):
            agent.looked_at = self.clock.elapsed()
            agent.verdict = agent.worker.look()
            if self.rng.random() < 0.4:
                self._execute(agent)

    def _execute(self, agent: Agent) -> None:
        verdict, agent.verdict = agent.verdict, []
        beats = {(row["task_name"], row["task_instance"]): row["last_heartbeat"] for row in self._read().rows}
        rows = [silence.row for silence in verdict]
        alive = [row.fence for row in rows if beats.get(row.key) != row.last_heartbeat]  # it stirred since the look
        if not self.steps_on:
            alive += [row.fence for row in rows if self._is_believed(row)]
        agent.worker.take_over(verdict)
        self._listen(agent, alive)

    def _is_believed(self, row: Row) -> bool:
        """Whether the holder, wherever it is, still has reason to believe in this claim."""
        return any(
            claim.key == row.key and claim.token == row.version and not agent.worker.is_lost(claim)
            for agent in self.agents
            if not agent.is_down
            for claim in agent.worker.held
        )

    def _poll(self, agent: Agent) -> None:
        for claim in agent.worker.poll(self.rng.choice((1, 2, 4))):
            self._note(agent, f"claims, token {claim.token}", claim)
            self.laws.claimed(claim)
            if self.rng.random() < 0.06 and not self.is_calm:
                self._note(agent, "never learns of its claim", claim)
                agent.worker.forget(claim)
        self._strike(agent)

    def _begin(self, agent: Agent) -> None:
        for claim in agent.worker.waiting:
            if self.rng.random() < 0.8 and agent.worker.begin(claim):
                self._note(agent, f"starts attempt {claim.row.attempt}, token {claim.token}", claim)
                agent.running.append(claim)
                self.laws.started(claim)
        self._strike(agent)

    def _end(self, agent: Agent) -> None:
        for claim in list(agent.running):
            if not agent.is_down and self.rng.random() < 0.4:
                self._finish(agent, claim, self._outcome(agent, claim))
        if not agent.is_down:
            self._strike(agent)

    def _outcome(self, agent: Agent, claim: Claim) -> Outcome | None:
        """How the handler ends; None: its process dies right after it has completed the slot."""
        match self.rng.randrange(10):
            case 0 | 1:
                return Failed("boom")
            case 2 | 3:
                return self._complete(agent, claim)
            case _ if claim.row.task_name == "poison" and self.rng.random() < 0.5:
                return None
            case _:
                return Succeeded()

    def _complete(self, agent: Agent, claim: Claim) -> Outcome | None:
        """complete_in, in a transaction of its own, which may be rolled back, or be the last thing the process does."""
        store = agent.worker.store
        try:
            with store.database.main.connect() as connection:
                LedgerFence(store).complete_in(claim, connection)
                if self.rng.random() < 0.3:
                    connection.rollback()
                else:
                    connection.commit()
                    self._note(agent, "completes in its own transaction", claim)
        except ClaimLost:
            self._note(agent, "cannot complete: the claim is lost", claim)
            return Failed("ClaimLost", promised=True)
        return self.rng.choice((Succeeded(promised=True), Failed("boom", promised=True), None))

    def _finish(self, agent: Agent, claim: Claim, outcome: Outcome | None) -> None:
        agent.running.remove(claim)
        if outcome is None:
            self._crash(agent)
            return
        self._note(agent, f"ends as {outcome.name}", claim)
        agent.worker.finish(claim, outcome)

    def _settle(self, agent: Agent) -> None:
        if not agent.is_down:
            agent.worker.settle()
            self._listen(agent)

    # -- what the workers say -----------------------------------------------------------------------------------

    def _listen(self, agent: Agent, alive: Collection[Fence] = ()) -> None:
        events, agent.heard = agent.worker.events[agent.heard :], len(agent.worker.events)
        for event in events:
            self._hear(agent, event, alive)

    def _hear(self, agent: Agent, event: Event, alive: Collection[Fence]) -> None:
        match event:
            case Planned():
                self.trace.add(self.clock.now(), agent.name, f"plans: {event.change}", event.job)
            case Settled():
                self._tell(agent, event, f"settled as {event.outcome} ({event.reason})")
                self.laws.ended(event)
            case Reaped():
                self._tell(agent, event, f"takes over from {event.holder.split(':')[0]}: {event.outcome}")
                self.laws.ended(event)
                self.laws.taken_over(event, alive)
            case HandedBackEvent():
                self._tell(agent, event, f"hands back: {event.reason}")
            case ClaimLostEvent():
                self._tell(agent, event, f"has lost its claim: {event.reason}")

    def _tell(self, agent: Agent, event: Any, what: str) -> None:
        self.trace.add(self.clock.now(), agent.name, f"{what}, token {event.token}", event.job, event.slot)

    def _note(self, agent: Agent, what: str, claim: Claim | None = None) -> None:
        name, slot = (claim.row.task_name, claim.slot) if claim else (None, None)
        self.trace.add(self.clock.now(), agent.name, what, name, slot)

    # -- after the storm ----------------------------------------------------------------------------------------

    def _calm_down(self) -> None:
        """No more accidents: zombies wake, everything that is due runs, and the books are closed."""
        self.is_calm = True
        for _ in range(30):
            self._let_time_pass(10)
            for agent in list(self.agents):
                if agent.is_down:
                    self._replace(agent)
            for agent in self.agents:
                agent.sleeps_until = 0.0
                self._work_well(agent)
            self.laws.check(self._read())
        self._let_time_pass(0.1)
        for agent in self.agents:
            self._work_well(agent)
        self.laws.check_end(self._read(), self.clock.now())

    def _work_well(self, agent: Agent) -> None:
        self._beat(agent)
        if agent.verdict:
            self._execute(agent)
        else:
            agent.verdict = agent.worker.look() if agent.is_due(agent.looked_at) else []
            self._execute(agent)
        for _ in range(2):
            self._poll(agent)
            for claim in agent.worker.waiting:
                if agent.worker.begin(claim):
                    agent.running.append(claim)
                    self.laws.started(claim)
            for claim in list(agent.running):
                self._finish(agent, claim, Succeeded())
            self._settle(agent)
