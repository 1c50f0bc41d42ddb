"""What befalls a simulated cluster."""

from __future__ import annotations

from datetime import timedelta

from tests.kit.records import Aborted, AttemptOutcome
from tests.simulation.agent import Agent
from tests.simulation.cast import SCHEDULES
from tests.simulation.stage import Stage

from slotwise.spi import Claim


class Accidents(Stage):
    """Each at any moment; some strike in the middle of what a worker does."""

    def _accident(self) -> None:
        agent = self.rng.choice(self.agents)
        accidents = [
            self._crash,
            self._freeze,
            self._lose_power,
            self._redeploy,
            self._restart,
            self._step_clock,
            self._schedule_tasks,
            self._schedule_tasks,
            self._schedule_tasks,
        ]
        self.rng.choice(
            [*accidents, self._restore, self._restore] if self.restores else accidents
        )(agent)

    def _crash(self, agent: Agent) -> None:
        """A process ends at once; another one starts in its place after a while."""
        self._note(agent, "crashes")
        agent.worker.crash()
        agent.is_down, agent.running, agent.verdict = True, [], []
        agent.sleeps_until = self.clock.elapsed() + self.rng.choice((5, 15, 60))

    def _freeze(self, agent: Agent) -> None:
        """It does nothing for a while, and knows nothing of that when it goes on; often for longer
        than its lease.
        """
        if not agent.is_down:
            self._note(agent, "freezes")
            agent.is_frozen = True
            agent.sleeps_until = self.clock.elapsed() + self.rng.choice(
                (15, 50, 61, 65, 75)
            )

    def _lose_power(self, _: Agent) -> None:
        """All at once."""
        if self.rng.random() < 0.2:
            for agent in self.agents:
                if not agent.is_down:
                    self._crash(agent)

    def _strike(self, agent: Agent) -> None:
        """An accident at this very moment: after a claim, a start, an end, before its
        settlement.
        """
        if self.rng.random() < 0.08 and not self.is_calm:
            self.rng.choice((self._crash, self._freeze))(agent)

    def _redeploy(self, agent: Agent) -> None:
        """A newer release with another schedule; the workers of the older one go on until they are
        restarted.
        """
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
        by = timedelta(
            seconds=self.rng.choice((*back, 20, 90, 600) if self.steps_on else back)
        )
        self.trace.add(
            self.clock.now(), "clock", f"is stepped by {by.total_seconds():+.0f} s"
        )
        self.clock.set(self.clock.now() + by)
        self.laws.clock_stepped(self.clock.now())

    def _schedule_tasks(self, agent: Agent) -> None:
        """Ids are used again, on purpose."""
        if agent.is_down:
            return
        for name in ("mail", "once", "few", "few", "few", "slow", "slow", "slow"):
            number = self.rng.randrange(4)
            delay = timedelta(seconds=self.rng.randrange(30))
            agent.worker.client.schedule(
                name, number, id=f"{number}", delay=delay, if_exists="keep"
            )

    def _restore(self, _: Agent) -> None:
        """The queue is put back as it was some time ago, the ledger is not; all workers are
        started anew.

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
        self.laws.restored(self._read())
        for agent in list(self.agents):
            if not agent.is_down and not agent.is_awake():
                self.zombies.append(agent)
            self._replace(agent)

    def _finish(
        self, agent: Agent, claim: Claim, outcome: AttemptOutcome | None
    ) -> None:
        agent.running.remove(claim)
        if outcome is None:
            self._crash(agent)
            return
        self._note(agent, f"ends as {outcome.name}", claim)
        agent.worker.finish(claim, outcome)

    def _settle(self, agent: Agent) -> None:
        if not agent.is_down:
            with self._lost() as told:
                agent.worker.settle()
            self._is_lost(agent, "its settlement", told)
            self._listen(agent)
