"""The row of a live worker, and how far the clock of its host is from the database's."""

from __future__ import annotations

import itertools
import logging
import re
import time
from datetime import timedelta

import pytest
import sqlalchemy as sa
from tests.kit.loops import Membership
from tests.kit.records import host_now
from tests.kit.store import Badge, WorkerRegistry, worker_registry
from tests.store.bench import LEASE, Bench


def a_member(
    bench: Bench, name: str = "host:1:a", lease: timedelta = LEASE
) -> Membership:
    badge = Badge(
        worker=name,
        host="host",
        pid=1,
        boot_id="a",
        version="1",
        capacity=1,
        tags=[],
        tasks=[],
        lease=lease,
        started=bench.store.now(),
        revision=None,
        refused=[],
        passed_over={},
    )
    return Membership(WorkerRegistry(bench.store), bench.store.history, lambda: badge)


def told(
    bench: Bench, caplog: pytest.LogCaptureFixture, ahead: timedelta, looks: int = 1
) -> list[str]:
    """What a worker says whose host is so far ahead of its database."""
    member = a_member(bench)
    with caplog.at_level(logging.WARNING, "slotwise"):
        for look in range(looks):
            set_at = time.monotonic()
            bench.clock.set(host_now() - ahead)
            if not look:
                member.join()
            skew = member.renew()
            assert skew is not None
            #: The database's clock stands still while this process waits for a processor.
            waited = time.monotonic() - set_at
            assert skew == pytest.approx(ahead.total_seconds(), abs=1 + waited)
    found = caplog.messages.copy()
    (worker,) = bench.inspect.workers()
    assert worker.skew is not None
    assert worker.skew.total_seconds() == pytest.approx(
        ahead.total_seconds(), abs=1 + waited
    )
    return found


@pytest.mark.parametrize("hours", [1, -1], ids=["ahead", "behind"])
def test_a_clock_that_is_off_is_measured_and_told_once(
    bench: Bench, caplog: pytest.LogCaptureFixture, hours: int
) -> None:
    """Either way, with each heartbeat, in the row for everybody; said once."""
    (line,) = told(bench, caplog, timedelta(hours=hours), looks=3)
    assert re.match(
        rf"this host's clock is {'-' * (hours < 0)}3[56]\d\d\.\d s off the database's; ",
        line,
    )


def test_a_clock_that_is_right_is_not_spoken_of(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Within a second, hosts differ as they like."""
    assert told(bench, caplog, timedelta(seconds=-0.5)) == []


def test_an_answer_that_took_long_shows_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database read its clock at some time between question and answer: whoever was frozen
    then is not off.
    """
    member, asked = a_member(bench), itertools.count()
    monkeypatch.setattr(
        worker_registry,
        "host_now",
        lambda: bench.clock.now() + timedelta(seconds=-9 + 10 * (next(asked) % 2)),
    )
    member.join()
    assert [member.renew() for _ in range(2)] == [0.0, 0.0]


def states(bench: Bench) -> dict[str, str]:
    with bench.store.transaction() as connection:
        workers = bench.tables.workers.c
        found = connection.execute(sa.select(workers.worker, workers.state))
        return {row.worker: row.state for row in found}


def test_a_worker_that_vanished_is_gone_for_others_to_read(bench: Bench) -> None:
    """The next heartbeat of any worker writes it, and its own heartbeat takes it back: it was
    frozen.
    """
    frozen, live = a_member(bench, "frozen"), a_member(bench, "live")
    for member in (frozen, live):
        member.join()
    bench.clock.tick(LEASE)
    live.renew()
    assert states(bench) == {"frozen": "running", "live": "running"}
    bench.clock.tick(timedelta(microseconds=1))
    live.renew()
    assert states(bench) == {"frozen": "gone", "live": "running"}
    frozen.renew()
    assert states(bench) == {"frozen": "running", "live": "running"}


def test_a_worker_with_a_longer_lease_is_not_gone(bench: Bench) -> None:
    """Its heartbeats are as far apart as its lease allows."""
    patient, hasty = a_member(bench, "patient", 3 * LEASE), a_member(bench, "hasty")
    for member in (patient, hasty):
        member.join()
    bench.clock.tick(2 * LEASE)
    hasty.renew()
    assert states(bench) == {"patient": "running", "hasty": "running"}


def test_workers_that_were_frozen_together_do_not_wait_for_each_other(
    pg_bench: Bench,
) -> None:
    """Race: each finds the other silent. No lock is waited for."""
    members = [a_member(pg_bench, name) for name in ("a", "b")]
    for member in members:
        member.join()
    pg_bench.clock.tick(2 * LEASE)
    with pg_bench.store.transaction() as connection:
        workers = pg_bench.tables.workers
        connection.execute(
            workers.update().where(workers.c.worker == "b").values(capacity=2)
        )
        members[0].renew()
    assert states(pg_bench) == {"a": "running", "b": "running"}
