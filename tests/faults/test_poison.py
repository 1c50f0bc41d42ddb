"""Handlers and payloads that do harm: to themselves, and to nobody else."""

from __future__ import annotations

import signal
from datetime import timedelta
from pathlib import Path

import pytest
from tests.faults.bench import SLACK, WIDE, Bench, eventually, loaded
from tests.faults.cast.poison import HARM
from tests.faults.cast.tasks import Note
from tests.faults.conftest import MakeBench


def leave(stage: Bench, *jobs: str) -> None:
    until = stage.now()
    for job in jobs:
        stage.wait("settled", job=job, slot=lambda slot: slot > until)
    stage.end_all()
    stage.expect_clean(until=until)


def test_a_slot_that_kills_its_workers_ends_as_dead(bench: MakeBench) -> None:
    """After max_lost workers the slot is dead and says why; the schedule goes on, and so do the
    other workers.
    """
    stage = bench("exits")
    stage.start_all(3)
    died = stage.wait("reaped", outcome="dead")
    after = stage.wait("settled", job="exits", after=died, outcome="succeeded")
    assert after["slot"] > died["slot"]
    assert sorted(seen["status"] for seen in stage.events.all("exit")) == [9, 9]
    leave(stage, "exits")
    row = stage.ledger("exits")[died["slot"]]
    assert (row.outcome, row.reason, row.attempts, row.lost) == (
        "dead",
        "max_lost",
        2,
        2,
    )
    assert "may be what takes workers down" in row.error


#: A loop whose tasks ignore their cancellation is left to itself after this.
LOOP_PATIENCE = 5.0


@pytest.mark.extended
@pytest.mark.parametrize(
    ("job", "patience"),
    [("deaf", 0.0), pytest.param("deaf-async", LOOP_PATIENCE, marks=pytest.mark.slow)],
)
def test_a_handler_that_never_returns_cannot_keep_its_worker(
    bench: MakeBench, job: str, patience: float
) -> None:
    """SIGTERM: grace, one more wait, and the process ends and says so; the slot starts elsewhere
    at once.
    """
    stage = bench(job, shutdown_grace="1s")
    holder = stage.start("holder")
    start = stage.wait("handler_start", by=holder)
    other = stage.start("other")
    stage.wait("worker_start", by=other)
    eventually(lambda: stage.starts(job))
    holder.kill(signal.SIGTERM)
    drain = stage.wait("drain_begin", by=holder)
    left = stage.wait("exit", by=holder)
    assert left["status"] == 4
    assert timedelta(seconds=left.at - drain.at) <= timedelta(
        seconds=1 + 1 + patience
    ) + loaded(SLACK)
    again = stage.wait("handler_start", job=job, slot=start["slot"], by=other)
    assert again["attempt"] == 2
    leave(stage, job)
    assert stage.events.all("reaped") == []


@pytest.mark.extended
def test_a_handler_that_holds_the_interpreter_loses_its_claim_and_nothing_else(
    bench: MakeBench,
) -> None:
    """A C call that keeps the lock stills the heartbeats, too: the slot runs elsewhere, the late
    outcome is refused.
    """
    stage = bench("hog")
    hog = stage.start("hog")
    start = stage.wait("handler_start", by=hog)
    stage.start("other")
    again = stage.wait("settled", slot=start["slot"], attempt=2)
    Path(f"{stage.log.path}.pipe").write_bytes(b".")
    lost = stage.wait("claim_lost", by=hog, job=start["job"], token=start["token"])
    assert lost.at > again.at
    stage.wait("claimed", by=hog, after=lost)
    leave(stage, "hog")


@pytest.mark.extended
def test_a_busy_handler_keeps_its_claim(bench: MakeBench) -> None:
    """Pure Python for longer than a lease: heartbeats go through."""
    stage = bench("busy,rerun", missed_heartbeats_limit=WIDE)
    busy = stage.start("busy")
    start = stage.wait("handler_start", job="busy", by=busy)
    stage.start("other")
    end = stage.wait("settled", job="busy", slot=start["slot"])
    assert (end.worker, end["attempt"]) == (busy, 1)
    leave(stage, "busy", "rerun")
    assert stage.events.all("reaped", "claim_lost") == []


@pytest.mark.extended
def test_a_handler_that_blocks_the_event_loop_keeps_its_claim_and_others_go_elsewhere(
    bench: MakeBench,
) -> None:
    """Heartbeats do not need the loop; what cannot start because of it is handed back, and starts
    elsewhere.
    """
    stage = bench("blocks,async", missed_heartbeats_limit=WIDE)
    blocked = stage.start("blocked")
    start = stage.wait("handler_start", job="blocks", by=blocked)
    told = stage.wait("blocked", by=blocked)
    other = stage.start("other")
    stage.wait("settled", job="async", by=other, after=told)
    end = stage.wait("settled", job="blocks", slot=start["slot"])
    assert (end.worker, end["attempt"]) == (blocked, 1)
    assert (
        stage.events.all("handler_start", job="async", by=blocked, at=lambda _: True)
        == []
    )
    leave(stage, "blocks", "async")
    assert stage.events.all("reaped", "claim_lost") == []


@pytest.mark.extended
@pytest.mark.parametrize("task", ["harm", "harm-async"])
def test_whatever_a_handler_raises_is_its_own_failure(
    bench: MakeBench, task: str
) -> None:
    """BaseException, exits, no memory, no text: the row is dead and says why, the worker serves
    on.
    """
    stage = bench(f"{task},note,async")
    worker = stage.start("worker", threads="20")
    stage.wait("worker_start", by=worker)
    for what in HARM:
        stage.registry.client.schedule(task, what, id=what)
    for what in HARM:
        stage.wait("settled", id=what)
    stage.registry.client.schedule("note", "afterwards", id="afterwards")
    stage.wait("settled", id="afterwards", outcome="succeeded")
    leave(stage, "async")
    rows = stage.rows(
        "select task_instance, state, last_error from scheduled_tasks where task_name = :task",
        task=task,
    )
    assert {row.task_instance: row.state for row in rows} == {
        what: "dead" for what in HARM if what != "nothing"
    }
    assert all(row.last_error and "\x00" not in row.last_error for row in rows)
    assert max(len(row.last_error) for row in rows) < 20_000
    assert worker.wait() == 0


@pytest.mark.extended
def test_a_task_that_ends_the_event_loop_ends_no_other_work(bench: MakeBench) -> None:
    """SystemExit in a task beside the handler ends asyncio's loop: the worker's other async jobs
    run all the same.
    """
    stage = bench("exit-beside,async,rerun")
    worker = stage.start("worker")
    stage.wait("settled", job="async", by=worker)
    stage.registry.client.schedule("exit-beside", id="once")
    stage.wait("settled", "exit", job=lambda job: job == "exit-beside")
    after = stage.mark()
    stage.wait("settled", job="rerun", after=after)
    stage.wait("settled", job="async", after=after, outcome="succeeded")
    leave(stage, "async", "rerun")


#: Payloads by name: the bytes, and whether JSON can make something of them.
PAYLOADS: dict[str, tuple[bytes, bool]] = {
    "plain": (b'{"a": 1}', True),
    "empty": (b"", False),
    "not JSON": (b"{a: 1}", False),
    "a pickle": (b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00\x8c\x01a\x94.", False),
    "not UTF-8": (b'"\xff\xfe\xfd"', False),
    "NUL": (b'"\x00"', False),
    "escaped NUL": (b'"\\u0000"', True),
    "lone surrogate": (b'"\\ud800"', True),
    "1e309": (b"1e309", True),
    "5,000 digits": (b"1" * 5000, False),
    "10,000 deep": (b"[" * 10_000 + b"]" * 10_000, False),
    "half": (b'{"a": [1, 2', False),
    "last": (b'"the end"', True),
}


ROW = """\
insert into scheduled_tasks (task_name, task_instance, task_data, execution_time, slot, picked, version)
values (%s, %s, %s, now(), now(), false, 1000)"""


@pytest.mark.extended
def test_payloads_that_cannot_be_read_do_not_hold_up_the_others(
    bench: MakeBench,
) -> None:
    """Rows written by SQL, claimed in one look: what can be read runs, the rest is set aside with
    a reason.
    """
    stage = bench("note", threads="20")
    with stage.connect() as connection:
        for name, (payload, _) in PAYLOADS.items():
            connection.exec_driver_sql(ROW, (Note.name, name, payload))
    worker = stage.start("worker")
    for name in PAYLOADS:
        stage.wait("settled", id=name)
    claims = stage.events.all("claimed")
    polls = [
        seen
        for seen in stage.events.all("poll_begin")
        if claims[0].number < seen.number < claims[-1].number
    ]
    assert (len(claims), polls) == (len(PAYLOADS), [])
    assert worker.end() == 0

    readable = {name for name, (_, good) in PAYLOADS.items() if good}
    assert {line.instance for line in stage.log.read()} == readable
    left = {
        row.task_instance: (row.state, "cannot be read" in row.last_error)
        for row in stage.rows("select * from scheduled_tasks")
    }
    assert left == dict.fromkeys(set(PAYLOADS) - readable, ("dead", True))
