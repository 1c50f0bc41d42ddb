"""A job each second on three workers, while workers are killed, frozen and drained and the
database restarts.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable

import pytest
from tests.faults.bench import (
    HEARTBEAT,
    LEASE,
    POLL,
    SLACK,
    TAKE_OVER,
    Bench,
    Player,
    Seen,
    loaded,
)
from tests.faults.conftest import MakeBench

from slotwise.embedded import EmbeddedPostgres

CAST = "rerun,give-up,async,retrying,delayed,completing"


class Storm:
    """Three workers, and what can happen to them and to the database. Each fault proves that it
    hit.
    """

    def __init__(self, stage: Bench, server: EmbeddedPostgres) -> None:
        self.stage = stage
        self.server = server
        self.crew = stage.start_all(3)

    def kill(self) -> None:
        """SIGKILL in a handler: its slot is taken over in time."""
        victim = self._at("handler_start")
        victim.worker.kill()
        self._replace(victim.worker)
        dead = self.stage.wait("exit", by=victim.worker)
        assert dead["status"] == -signal.SIGKILL
        reaped = self.stage.wait(
            "reaped", after=victim, job=victim["job"], token=victim["token"]
        )
        assert reaped.at - dead.at <= (TAKE_OVER + loaded(SLACK)).total_seconds()

    def freeze(self) -> None:
        """SIGSTOP past the lease: the slot is taken over, and the zombie's own outcome is
        refused.
        """
        victim = self._at("handler_start", job=lambda job: job in ("give-up", "rerun"))
        victim.worker.freeze()
        reaped = self.stage.wait(
            "reaped", after=victim, job=victim["job"], token=victim["token"]
        )
        if (
            victim["job"] == "rerun" and reaped["outcome"] == "lost"
        ):  # not dead, after too many of these in a row
            again = {
                "job": "rerun",
                "slot": victim["slot"],
                "attempt": lambda number: number > victim["attempt"],
            }
            self.stage.wait("claimed", after=victim, **again)
        thawed = self.stage.mark()
        victim.worker.thaw()
        self.stage.wait(
            "claim_lost", by=victim.worker, job=victim["job"], token=victim["token"]
        )
        self.stage.wait(
            "claimed", by=victim.worker, after=thawed
        )  # it goes on working
        assert (
            self.stage.events.all("settled", job=victim["job"], token=victim["token"])
            == []
        )

    def nap(self) -> None:
        """SIGSTOP for less than the lease: nobody takes anything over."""
        for _ in range(5):
            victim = self._at("handler_start", job="async")
            asleep = victim.worker
            asleep.freeze()
            self.stage.rest(LEASE * 0.6)
            thawed = self.stage.mark()
            beats = self.stage.events.all("heartbeat", by=asleep)
            asleep.thaw()
            back = self.stage.wait("heartbeat", by=asleep, after=thawed)
            end = self.stage.wait("settled", job=victim["job"], slot=victim["slot"])
            if beats and back.said - beats[-1].said < LEASE - HEARTBEAT / 2:
                assert (end.worker, end["token"]) == (asleep, victim["token"])
                return
        pytest.fail(
            "five times this machine took longer than 0.4 leases to let a worker go on"
        )

    def drain(self) -> None:
        """SIGTERM: what runs ends, nothing is lost, the process leaves in order."""
        victim = self._at("handler_start").worker
        victim.kill(signal.SIGTERM)
        self._replace(victim)
        assert self.stage.wait("exit", by=victim)["status"] == 0

    def restart(self) -> None:
        """A fast restart of the database."""
        self._restart("fast")

    def crash(self) -> None:
        """An immediate one, with recovery."""
        self._restart("immediate")

    def disconnect(self) -> None:
        """The server ends all sessions."""
        last = self._at("handler_start")
        ended = self.stage.rows(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where pid <> pg_backend_pid() and backend_type = 'client backend'"
        )
        assert len(ended) >= 3
        self.stage.wait("settled", after=last)

    def _restart(self, mode: str) -> None:
        self._at("handler_start")
        self.server.restart(mode)  # type: ignore[arg-type]
        begun = self.stage.mark()
        back = [
            self.stage.wait("heartbeat", after=begun, by=player)
            for player in self.crew
        ]
        back += [self.stage.wait("claimed", after=begun)]
        late = max(seen.at for seen in back) - begun.at
        assert late <= (4 * POLL + loaded(2 * SLACK)).total_seconds()

    def _at(self, event: str, **facts: object) -> Seen:
        """The next such event of somebody of the crew."""
        latest = self.stage.mark()
        return self.stage.wait(
            event, after=latest, by=lambda player: player in self.crew, **facts
        )

    def _replace(self, player: Player) -> None:
        self.crew[self.crew.index(player)] = self.stage.start()

    def settle(self) -> None:
        """The faults are over: everything that was due is decided, everybody leaves, and the
        laws held.
        """
        for player in self.crew:
            self.stage.wait(
                "worker_start", by=player
            )  # before that, SIGTERM ends whatever Python imports
        until = self.stage.now()
        for job in CAST.split(","):
            self.stage.wait("settled", job=job, slot=lambda slot: slot > until)
        statuses = self.stage.end_all()
        assert set(statuses) == {0}
        found = self.stage.expect_clean(until=until)
        # One that gives up may be lost between its mark and its handler: it has not run, for all
        # that anybody knows.
        assert (
            found.tally.ran + found.tally.skipped + found.tally.lost >= found.tally.due
        )
        assert min(tally.ran for tally in found.jobs.values()) > 0
        hopeless = [
            row.outcome
            for slot, row in self.stage.ledger("retrying").items()
            if slot.second % 7 == 0
        ]
        assert "succeeded" not in hopeless


@pytest.mark.extended
@pytest.mark.timeout(300)
def test_a_storm_breaks_no_law(bench: MakeBench, own_server: EmbeddedPostgres) -> None:
    """One fault after the other: ledger, schedule and handlers agree, and nothing ran too often or
    not at all.
    """
    storm = Storm(bench(CAST, url=own_server.dsn, shutdown_grace="30s"), own_server)
    for fault in (
        storm.kill,
        storm.freeze,
        storm.restart,
        storm.nap,
        storm.drain,
        storm.crash,
        storm.disconnect,
    ):
        fault()
    storm.settle()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("seed", "seconds"), [(1, 60), (2, 60), (3, 180)])
def test_a_long_storm_breaks_no_law(
    bench: MakeBench, own_server: EmbeddedPostgres, seed: int, seconds: int
) -> None:
    """The same for minutes, the faults drawn by lot."""
    lot = random.Random(seed)
    storm = Storm(bench(CAST, url=own_server.dsn, shutdown_grace="30s"), own_server)
    faults: list[Callable[[], None]] = [
        storm.kill,
        storm.freeze,
        storm.restart,
        storm.nap,
        storm.drain,
        storm.crash,
        storm.disconnect,
    ]
    begun = storm.stage.now()
    while (storm.stage.now() - begun).total_seconds() < seconds:
        lot.choice(faults)()
    storm.settle()
