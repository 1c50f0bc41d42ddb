"""A cluster in a box: several workers, one clock, one store, and accidents by seed.

Each worker is the engine's own, called one round of one loop at a time, in an order that the seed
decides. Between two calls anything may happen: it freezes and comes back as a zombie, it crashes,
the database's clock is stepped, a newer deploy arrives. The laws look on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from tests.kit.records import AttemptOutcome, Failed, Succeeded, to_micros
from tests.kit.store import LedgerFence
from tests.simulation.accidents import Accidents
from tests.simulation.agent import Agent
from tests.simulation.laws import Laws
from tests.simulation.operators import audit

from slotwise import ClaimLost
from slotwise.operations import Operations
from slotwise.spi import Claim, Row

#: How long everybody works well, in tens of seconds, until nothing is left to be done.
CALM = 30


class World(Accidents):
    """``run`` lives through the accidents of the seed, then calms down; raises LawBroken."""

    def run(self) -> Laws:
        for _ in range(self.rounds):
            self._let_time_pass(
                self.rng.choice((1, 2, 3, 5, 8, 13)) + self.rng.random()
            )
            if self.rng.random() < 0.15:
                self._accident()
            if self.rng.random() < 0.12:
                self._order()
            for agent in self.rng.sample(
                [*self.agents, *self.zombies], len(self.agents) + len(self.zombies)
            ):
                self._act(agent)
            self.laws.check(self._read())
        self._calm_down()
        return self.laws

    # -- a worker's turn --------------------------------------------------------------------------

    def _act(self, agent: Agent) -> None:
        """Some of its loops, in any order; a zombie that wakes up goes on where it was."""
        if not agent.is_awake():
            return
        if agent.is_frozen and not agent.is_down:
            self._go_on(agent)
        if agent in self.zombies:
            self.zombies.remove(agent)
            turns = [self._end, self._settle, self._beat, self._execute]
        elif agent.is_down:
            self._replace(agent)
            return
        else:
            turns = [
                self._beat,
                self._watch,
                self._reap,
                self._poll,
                self._begin,
                self._end,
                self._settle,
            ]
        for turn in self.rng.sample(turns, len(turns)):
            if not agent.is_down and agent.is_awake() and self.rng.random() < 0.8:
                turn(agent)

    def _go_on(self, agent: Agent) -> None:
        """What it was about to do when it froze: often it settles before it looks at any clock."""
        agent.is_frozen = False
        if self.rng.random() < 0.7:
            for claim in list(agent.running):
                self._finish(agent, claim, Succeeded())
            self._settle(agent)

    def _beat(self, agent: Agent) -> None:
        if agent.is_due(agent.beat_at):
            agent.beat_at = self.clock.elapsed()
            with self._lost() as told:
                agent.worker.beat()
            self._is_lost(agent, "its heartbeat", told)
            self._listen(agent)

    def _watch(self, agent: Agent) -> None:
        agent.worker.watch()

    def _reap(self, agent: Agent) -> None:
        """At once, or with a pause between the look and the deed, in which everything may
        change.
        """
        if agent.verdict:
            if self.rng.random() < 0.5:
                self._execute(agent)
        elif agent.is_due(agent.looked_at):
            agent.looked_at = self.clock.elapsed()
            agent.verdict = agent.worker.find_dead()
            if self.rng.random() < 0.4:
                self._execute(agent)

    def _execute(self, agent: Agent) -> None:
        verdict, agent.verdict = agent.verdict, []
        beats = {
            (row["task_name"], row["task_instance"]): row["last_heartbeat"]
            for row in self._read().rows
        }
        rows = list(verdict)
        alive = [
            row.fence for row in rows if beats.get(row.key) != row.last_heartbeat
        ]  # it stirred since the look
        if not self.steps_on:
            alive += [row.fence for row in rows if self._is_believed(row)]
        with self._lost() as told:
            agent.worker.take_over(verdict)
        self._is_lost(agent, "what it has taken over", told)
        self._listen(agent, alive)

    def _is_believed(self, row: Row) -> bool:
        """Whether the holder, wherever it is, still has reason to believe in this claim."""
        return any(
            claim.key == row.key
            and claim.token == row.version
            and not agent.worker.is_lost(claim)
            for agent in self.agents
            if not agent.is_down
            for claim in agent.worker.held
        )

    def _poll(self, agent: Agent) -> None:
        before = {claim.fence for claim in agent.worker.held}
        with self._lost(surely=False) as told:
            agent.worker.poll(self.rng.choice((1, 2, 4)))
        claims = [claim for claim in agent.worker.waiting if claim.fence not in before]
        for claim in claims + (
            self._unknown(agent) if self._is_lost(agent, "its claims", told) else []
        ):
            self._note(agent, f"claims, token {claim.token}", claim)
            self.laws.claimed(claim, agent.tags)
        if claims and not told and not self.is_calm:
            self.laws.claims_of.polled(claims, self._left(agent))
        self._strike(agent)

    def _unknown(self, agent: Agent) -> list[Claim]:
        """What the database says this worker holds, and it does not know."""
        store, held = agent.worker.store, {claim.fence for claim in agent.worker.held}
        found = [
            claim
            for claim in store.held.held_by(agent.worker.name)
            if claim.fence not in held
        ]
        again = [
            store.held.find_claim(*claim.key, claim.token, claim.holder)
            for claim in found
        ]
        return [
            claim
            for claim in again
            if claim is not None and not self.laws.knows(claim)
        ]

    def _left(self, agent: Agent) -> Sequence[Any]:
        """Rows that this worker may run, were due before now, and are as they were."""
        store, now = agent.worker.store, self.clock.now()
        tasks = store.tables.tasks
        waits = [
            ~tasks.c.picked,
            tasks.c.state.is_(None),
            tasks.c.execution_time <= now,
        ]
        with store.transaction() as connection:
            rows = connection.execute(
                sa.select(tasks).where(*waits, tasks.c.version < to_micros(now))
            ).all()
        return [
            row
            for row in rows
            if store.definitions[row.task_name].may_run_on(agent.tags)
        ]

    def _begin(self, agent: Agent) -> None:
        for claim in agent.worker.waiting:
            if self.rng.random() < 0.8 and self._start(agent, claim):
                self._note(
                    agent,
                    f"starts attempt {claim.row.attempt}, token {claim.token}",
                    claim,
                )
                agent.running.append(claim)
                self.laws.started(claim)
        self._strike(agent)

    def _start(self, agent: Agent, claim: Claim) -> bool:
        """A mark that is not acknowledged is no error: nothing starts."""
        with self._lost(surely=False) as told:
            begun = agent.worker.begin(claim)
        assert not told
        if not begun:
            self.laws.refused(claim)
        return begun

    def _end(self, agent: Agent) -> None:
        for claim in list(agent.running):
            if not agent.is_down and self.rng.random() < 0.4:
                self._finish(agent, claim, self._outcome(agent, claim))
        if not agent.is_down:
            self._strike(agent)

    def _outcome(self, agent: Agent, claim: Claim) -> AttemptOutcome | None:
        """How the handler ends; None: its process dies right after it has completed the slot."""
        match self.rng.randrange(10):
            case 0 | 1:
                return Failed("boom")
            case 2 | 3:
                return self._complete(agent, claim)
            case _ if (
                agent.worker.store.held.find_claim(
                    *claim.key, claim.token, claim.holder
                )
                is None
            ):
                return self._complete(
                    agent, claim
                )  # another holds the slot: this must be refused
            case _ if claim.row.task_name == "poison" and self.rng.random() < 0.5:
                return None
            case _:
                return Succeeded()

    def _complete(self, agent: Agent, claim: Claim) -> AttemptOutcome | None:
        """complete_in, in a transaction of its own, which may be rolled back, or be the last thing
        the process does.
        """
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
        return self.rng.choice(
            (Succeeded(promised=True), Failed("boom", promised=True), None)
        )

    def _order(self) -> None:
        """An operator, who sits somewhere. An operation that fails was not carried out: the audit
        shows at the end.
        """
        said = "hears that nothing was done"
        with self._lost():
            said = self.operator.operation(
                self._controls(), self._read(), self.clock.now()
            )
        self.trace.add(self.clock.now(), "human", said)

    def _controls(self) -> Operations:
        return self.agents[0].worker.client.operations

    # -- after the storm --------------------------------------------------------------------------

    def _calm_down(self) -> None:
        """No more accidents: zombies wake, everything that is due runs, and the books are
        closed.
        """
        self.is_calm = True
        self.operator.let_all_go_on(self._controls(), self._read(), self.clock.now())
        for number in range(self.longest_calm):
            if number >= CALM and not self._read().is_due(self.clock.now()):
                # what was missed while nobody was there, by half an hour and in a pace, takes
                # longer
                break
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
        ledger, store = self._read(), self.agents[0].worker.store
        self.laws.check_end(ledger, self.clock.now())
        with store.transaction() as connection:
            self.laws.operations.check_end(ledger, audit(connection, store.tables))

    def _work_well(self, agent: Agent) -> None:
        self._beat(agent)
        if agent.verdict:
            self._execute(agent)
        else:
            agent.verdict = (
                agent.worker.find_dead() if agent.is_due(agent.looked_at) else []
            )
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
