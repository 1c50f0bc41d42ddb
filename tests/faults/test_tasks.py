"""Thousands of one-time tasks on two processes of ten threads."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from tests.faults.bench import SETTINGS, WIDE, Bench, Player, eventually, loaded
from tests.faults.conftest import MakeBench
from tests.kit.dialect import DIALECT

#: A base that sends each part of a verb by itself takes several times as long for each.
COUNT = 2_000 if DIALECT == "locking" else 10_000
FEWER = 3 * COUNT // 10


@pytest.mark.extended
@pytest.mark.parametrize(
    "count",
    [
        pytest.param(FEWER, id="some"),
        pytest.param(COUNT, id="all", marks=pytest.mark.slow),
    ],
)
def test_each_of_thousands_of_tasks_runs_once(bench: MakeBench, count: int) -> None:
    """Two processes with ten threads each run 10,000 rows in 30 s (2,000 with ``Locking``): none
    twice, none lost, none left.
    """
    stage = bench("note", poll_interval="50ms", missed_heartbeats_limit=WIDE)
    with stage.connect() as connection:
        connection.exec_driver_sql(
            "insert into scheduled_tasks (task_name, task_instance, task_data, "
            "execution_time, slot, picked, version)"
            f" select 'note', i::text, convert_to(i::text, 'UTF8'), now(), now(), false, 1000 + i"
            f" from generate_series(1, {count}) i"
        )
    first, second = stage.start_all(2)
    begun = min(stage.wait("claimed").at, stage.wait("worker_start", by=second).at)
    ended = stage.wait_for_empty_queue(within=100)
    stage.end_all()

    noted = Counter(line.instance for line in stage.log.read())
    assert noted == {str(i): 1 for i in range(1, count + 1)}
    assert ended - begun <= loaded(timedelta(seconds=30)).total_seconds()
    shares = Counter(line.pid for line in stage.log.read())
    assert set(shares) == {first.pid, second.pid}


@pytest.mark.parametrize(
    "held",
    [
        pytest.param(True, id="all threads busy"),
        pytest.param(False, id="in the middle", marks=pytest.mark.extended),
    ],
)
def test_a_crash_loses_no_give_up_task_that_has_not_started(
    bench: MakeBench, held: bool
) -> None:
    """kill -9 among many: what ended dead had started, none starts twice, and all others run
    elsewhere.

    In the middle of it, each thread may have set a mark and be about to start; while all handlers
    hold, none is.
    """
    threads = 2 if held else int(SETTINGS["threads"])
    stage = bench("note-once", poll_interval="50ms")
    with stage.connect() as connection:
        connection.exec_driver_sql(
            "insert into scheduled_tasks (task_name, task_instance, task_data, "
            "execution_time, slot, picked, version)"
            " select 'note-once', i::text, convert_to(i::text, 'UTF8'), due, due, false, 1000 + i"
            f" from generate_series(1, {FEWER}) i, lateral (select now() + i * "
            "interval '1 microsecond') d(due)"
        )
    if held:
        victim, holding = _held_with_claims_ahead(stage, threads)
    else:
        stage.release("note-once")
        victim, holding = stage.start("victim"), set()
        eventually(lambda: len(stage.log.read()) > FEWER // 10, pause=0.01)
    victim.kill()
    stage.wait("exit", by=victim)
    started = _started(stage)
    assert len(started) < FEWER, "it was killed too late to prove anything"
    assert len(_claimed(stage) - started) > threads or not held, (
        "nothing was claimed ahead, which proves nothing"
    )
    stage.release("note-once")
    stage.start("heir")
    alive = "select from scheduled_tasks where state is distinct from 'dead' limit 1"
    eventually(lambda: not stage.rows(alive), within=250)
    stage.end_all()

    dead = {
        row.task_instance
        for row in stage.rows("select task_instance from scheduled_tasks")
    }
    assert len(dead - started) <= (0 if held else threads)
    assert dead >= holding
    noted = Counter(line.instance for line in stage.log.read())
    assert set(noted.values()) == {1}
    assert set(noted) | dead == {str(i) for i in range(1, FEWER + 1)}


def _held_with_claims_ahead(stage: Bench, threads: int) -> tuple[Player, set[str]]:
    """A frozen worker whose handlers all hold while more tasks wait behind them, and what its
    handlers hold.

    How many it claims ahead follows from how fast the last handlers ended, and what waits for too
    long is handed back: on a busy machine that may be none, so it gets more tasks and holds again.
    Frozen, it hands back nothing.
    """
    victim = stage.start("victim", threads=str(threads))
    for quick in range(FEWER // 3, FEWER, FEWER // 12):
        stage.release("note-once", quick)
        eventually(
            lambda quick=quick: len(_started(stage, after=quick)) >= threads,
            pause=0.01,
        )
        victim.freeze()
        if len(_claimed(stage) - _started(stage)) > threads:
            return victim, _started(stage, after=quick)
        victim.thaw()
    raise AssertionError("no task was ever claimed ahead")


def _started(stage: Bench, after: int = 0) -> set[str]:
    """Those whose handlers have started, with a number above this one: which hold."""
    return {line.instance for line in stage.log.read() if int(line.instance) > after}


def _claimed(stage: Bench) -> set[str]:
    return {
        row[0]
        for row in stage.rows("select task_instance from scheduled_tasks where picked")
    }


@pytest.mark.extended
def test_threads_that_burn_cpu_hand_little_back(bench: MakeBench) -> None:
    """200 handlers that leave no time to each other: after the first claims, few that cannot start
    are claimed.

    Without the limit, hundreds are claimed and handed back for each dozen that starts.
    """
    threads, seconds = 200, 14
    stage = bench(
        "burn",
        threads=str(threads),
        heartbeat_interval="1s",
        missed_heartbeats_limit="30",
        poll_interval="100ms",
    )
    with stage.connect() as connection:
        connection.exec_driver_sql(
            "insert into scheduled_tasks (task_name, task_instance, task_data, "
            "execution_time, slot, picked, version)"
            " select 'burn', i::text, convert_to('2', 'UTF8'), now(), now(), false, 1000 + i"
            " from generate_series(1, 1000) i"
        )
    worker = stage.start()
    stage.wait("handed_back", reason="queued", by=worker)
    stage.rest(timedelta(seconds=seconds))
    worker.kill()
    backs, starts = (
        len(stage.events.all(name)) for name in ("handed_back", "handler_start")
    )
    assert stage.events.all("claim_lost") == []
    # beside busy neighbours up to 257; without the limit 575
    assert backs <= threads + 5 * seconds + starts, (
        f"{backs} hand-backs, {starts} starts"
    )
