"""The database is away, comes and goes, refuses to write, or has no connection left."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta

import psycopg
import pytest
from tests.faults.bench import (
    HEARTBEAT,
    LEASE,
    POLL,
    SLACK,
    WIDE,
    WIDE_LEASE,
    Bench,
    Player,
    Seen,
    loaded,
)
from tests.faults.conftest import MakeBench
from tests.integration.test_wakeup_listener import Scene, mail

from slotwise.embedded import EmbeddedPostgres
from slotwise.embedded.cluster import Cluster

CAST = "rerun,give-up,completing"


def leave(stage: Bench, *jobs: str) -> None:
    until = stage.now()
    for job in jobs or CAST.split(","):
        stage.wait("settled", job=job, slot=lambda slot: slot > until)
    assert set(stage.end_all()) == {0}
    stage.expect_clean(until=until)


@contextmanager
def down(server: EmbeddedPostgres) -> Iterator[None]:
    """The server does not run in here."""
    cluster: Cluster = server._cluster
    cluster.stop("fast")
    try:
        yield
    finally:
        server.start()


def expect_one_complaint_each(stage: Bench, after: Seen, *players: Player) -> None:
    """Each of these workers has said once that the database is gone, and nothing else about it; no
    traceback.
    """
    said = [
        seen
        for seen in stage.events.all("database_lost", "log", "text")
        if seen.number > after.number
    ]
    loud = [seen for seen in said if seen["level"] not in ("DEBUG", "INFO")]
    assert Counter(seen.worker for seen in loud) == Counter(players), "\n".join(
        map(str, loud)
    )


@pytest.mark.extended
def test_a_worker_waits_for_a_database_that_is_down_at_its_start(
    bench: MakeBench, own_server: EmbeddedPostgres
) -> None:
    """It says so once, waits, and begins when the database is there; told to stop meanwhile, it
    stops.
    """
    stage = bench(CAST, url=own_server.dsn, shutdown_grace="30s")
    begun = stage.mark()
    with down(own_server):
        waits, stops = stage.start("waits"), stage.start("stops")
        stage.wait("database_lost", by=waits)
        stage.wait("database_lost", by=stops)
        assert stops.end() == 0
        stage.rest(timedelta(seconds=2))
        assert waits.is_alive
    expect_one_complaint_each(stage, begun, waits, stops)
    up = stage.mark()
    started = stage.wait("worker_start", by=waits)
    assert started.at - up.at <= loaded(timedelta(seconds=15)).total_seconds()
    stage.wait("database_back", by=waits)
    leave(stage)


@pytest.mark.extended
def test_wake_ups_are_heard_again_after_a_restart(
    own_server: EmbeddedPostgres,
) -> None:
    """With a poll in an hour it is a word that starts a task, on whatever connection it listens
    now.
    """
    with closing(Scene(own_server.dsn, mail)) as scene:
        before = scene.until_it_listens()
        scene.client.schedule(mail)
        scene.heard.wait("settled")
        with down(own_server):
            scene.heard.wait("database_lost")
        scene.heard.wait("database_back")
        assert scene.until_it_listens() != before
        for count in (2, 3):
            scene.client.schedule(mail)
            scene.heard.wait("settled", count)


def test_workers_outlive_an_outage(
    bench: MakeBench, own_server: EmbeddedPostgres
) -> None:
    """Seconds without a database: each loop says so once and waits; then work goes on, and no
    worker has ended.
    """
    stage = bench(CAST, url=own_server.dsn, shutdown_grace="30s")
    crew = stage.start_all(2)
    stage.wait("handler_start", job="rerun")
    begun = stage.mark()
    with down(own_server):
        for player in crew:
            stage.wait("database_lost", by=player, after=begun)
        stage.rest(2 * LEASE)
    back = stage.mark()
    for player in crew:
        beats = stage.wait("heartbeat", by=player, after=back)
        assert beats.at - back.at <= (4 * POLL + loaded(3 * SLACK)).total_seconds()
    expect_one_complaint_each(stage, begun, *crew)
    assert all(player.is_alive for player in crew)
    leave(stage)


@contextmanager
def frozen(server: EmbeddedPostgres) -> Iterator[None]:
    """All processes of the server stand still in here; connections stay, and the kernel
    acknowledges what comes.
    """
    with psycopg.connect(server.dsn) as connection:
        pids = [
            pid
            for (pid,) in connection.execute(
                "select pid from pg_stat_activity where pid <> pg_backend_pid()"
            )
        ]
    pids.append(int((server.data / "postmaster.pid").read_text().split()[0]))
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_a_paused_database_takes_no_work_away(
    bench: MakeBench, own_server: EmbeddedPostgres
) -> None:
    """Two leases in which nobody could write prove nobody's death: work that ended meanwhile
    counts, once.

    Afterwards two looks of a reaper at one and the same heartbeat would prove it. A worker that
    waits for a core, or for its connection, has the time between them to send another.
    """
    lease = 10 * HEARTBEAT
    ends, goes_on = "hold-long", "hold-long@on"
    stage = bench(
        f"{ends},{goes_on},rerun,give-up",
        url=own_server.dsn,
        missed_heartbeats_limit="10",
        reaper_interval="4s",  # the longest that this lease allows
        shutdown_grace="30s",
    )
    crew = stage.start_all(2)
    held = [stage.wait("handler_start", job=job) for job in (ends, goes_on)]
    with frozen(own_server):
        stage.rest(lease)
        stage.release(ends)
        stage.wait("handler_end", job=ends, token=held[0]["token"])
        stage.rest(lease)
    stage.rest(2 * lease)  # each reaper has looked twice
    assert stage.events.all("settled", job=goes_on) == []
    stage.release(goes_on)
    for start in held:
        settled = stage.wait("settled", job=start["job"], slot=start["slot"])
        assert (settled.worker, settled["attempt"], settled["outcome"]) == (
            start.worker,
            1,
            "succeeded",
        )
    assert all(player.is_alive for player in crew)
    leave(stage, ends, goes_on, "rerun", "give-up")
    assert stage.events.all("reaped") == []


@pytest.mark.extended
def test_a_read_only_server_burns_no_attempt(
    bench: MakeBench, own_server: EmbeddedPostgres
) -> None:
    """25006 is the database's trouble, not the job's: nothing fails, nothing is counted, work goes
    on afterwards.
    """
    stage = bench("give-up,completing", url=own_server.dsn, shutdown_grace="30s")
    crew = stage.start_all(2)
    stage.wait("settled", job="give-up")
    begun = stage.mark()
    _set_read_only(own_server, "on")
    late = stage.start("late")
    for player in (*crew, late):
        stage.wait("database_lost", by=player, after=begun)
    stage.rest(LEASE)
    assert all(player.is_alive for player in [*crew, late])
    _set_read_only(own_server, "off")
    back = stage.mark()
    stage.wait("worker_start", by=late)
    for player in crew:
        stage.wait("heartbeat", by=player, after=back)
    expect_one_complaint_each(stage, begun, *crew, late)
    leave(stage, "give-up", "completing")
    assert {row.outcome for row in stage.ledger("give-up").values()} <= {
        "succeeded",
        "skipped",
    }


def _set_read_only(server: EmbeddedPostgres, value: str) -> None:
    with psycopg.connect(
        server.dsn, autocommit=True, options="-c default_transaction_read_only=off"
    ) as connection:
        connection.execute(
            f"alter system set default_transaction_read_only = {value}".encode()
        )
        connection.execute("select pg_reload_conf()")


@pytest.mark.extended
def test_heartbeats_go_through_when_no_connection_is_left(
    bench: MakeBench, own_server: EmbeddedPostgres
) -> None:
    """Others take all connections for longer than a lease: no claim is lost; a worker that starts
    meanwhile waits.
    """
    stage = bench(
        "hold-long,rerun",
        url=own_server.dsn,
        missed_heartbeats_limit=WIDE,
        shutdown_grace="30s",
    )
    holder = stage.start("holder")
    start = stage.wait("handler_start", job="hold-long", by=holder)
    other = stage.start("other")
    stage.wait("worker_start", by=other)
    with _all_connections(own_server) as taken:
        assert taken
        late = stage.start("late")
        lost = stage.wait("database_lost", by=late)
        assert "connections" in lost["error"] or "clients" in lost["error"]
        stage.rest(WIDE_LEASE + HEARTBEAT)
        stage.release("hold-long")
        end = stage.wait("handler_end", job="hold-long", token=start["token"])
    settled = stage.wait("settled", job=start["job"], token=start["token"], after=end)
    assert (settled.worker, settled["outcome"], settled["attempt"]) == (
        holder,
        "succeeded",
        1,
    )
    assert stage.events.all("reaped", "claim_lost") == []
    stage.wait("worker_start", by=late)
    leave(stage, "hold-long", "rerun")


@contextmanager
def _all_connections(server: EmbeddedPostgres) -> Iterator[list[psycopg.Connection]]:
    """Whoever comes now is refused: all are taken, also those that are kept for superusers."""
    taken: list[psycopg.Connection] = []
    try:
        while True:
            taken.append(psycopg.connect(server.dsn, connect_timeout=5))
    except psycopg.OperationalError:
        yield taken
    finally:
        for connection in taken:
            connection.close()


@pytest.mark.extended
def test_a_row_that_somebody_else_has_locked_costs_no_claim(bench: MakeBench) -> None:
    """A settlement that waits for a row which somebody else has locked does not stop the
    heartbeats of its worker.
    """
    stage = bench(
        "hold-long,rerun", missed_heartbeats_limit=WIDE, shutdown_grace="30s"
    )
    holder = stage.start("holder")
    start = stage.wait("handler_start", job="hold-long", by=holder)
    other = stage.start("other")
    stage.wait("worker_start", by=other)
    with (
        stage.connect() as connection
    ):  # an operator's transaction on a row that is settled each second
        connection.exec_driver_sql(
            "select from scheduled_tasks where task_name = 'rerun' for update"
        )
        stage.rest(WIDE_LEASE + HEARTBEAT)
        stage.release("hold-long")
        stage.wait("handler_end", job=start["job"], token=start["token"])
    settled = stage.wait("settled", job=start["job"], token=start["token"])
    assert (settled["outcome"], settled["attempt"]) == ("succeeded", 1)
    assert stage.events.all("reaped", job="hold-long") == []
    leave(stage, "hold-long", "rerun")
