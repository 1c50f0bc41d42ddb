"""What is counted of which attempt; on the clock of a test."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from tests.contrib.metrics.ports import ask

from slotwise import (
    Cancel,
    ConfigurationError,
    Context,
    Every,
    JobContext,
    JobRegistry,
    Retry,
    Settings,
    job,
    task,
)
from slotwise.contrib.metrics import Metrics, Port
from slotwise.contrib.metrics.figures import (
    FIGURES,
    Kind,
    Snapshot,
    as_plain,
    combined,
    from_plain,
)
from slotwise.contrib.metrics.meter import ClusterReader, Sums
from slotwise.inspect import DatabaseInfo, SinceSuccess
from slotwise.spi import Database
from slotwise.testing import ManualWorker

ATTEMPTS = "slotwise_attempts"


@job(name="report", schedule=Every("1h"))
def report(ctx: JobContext) -> None: ...


@job(name="shy", schedule=Every("1h"))
def shy(ctx: JobContext) -> None:
    raise Cancel("for a reason of its own, order 4711")


@task(name="mail", retry=Retry.exponential(max_attempts=2, initial="1s"))
def mail(ctx: Context) -> None:
    raise ValueError("no way")


@pytest.fixture
def metrics() -> Metrics:
    registry = JobRegistry(jobs=[report, shy], tasks=[mail])
    return Metrics(registry)


@pytest.fixture
def played(metrics: Metrics) -> Iterator[tuple[ManualWorker, Metrics]]:
    with ManualWorker(metrics.registry) as worker:
        yield worker, metrics


def test_attempts_by_outcome_and_reason(played: tuple[ManualWorker, Metrics]) -> None:
    """A retry has its reason; text that a handler has made up does not become a label."""
    worker, metrics = played
    worker.client.schedule("mail", id="1")
    worker.tick("1h")
    worker.run_due()
    worker.tick("5s")
    worker.run_due()
    assert metrics.counted()[ATTEMPTS] == {
        ("report", "slot", "succeeded", ""): 1,
        ("shy", "slot", "cancelled", "other"): 1,
        ("mail", "task", "failed", "retry"): 1,
        ("mail", "task", "dead", ""): 1,
    }


def test_lateness_and_waits(played: tuple[ManualWorker, Metrics]) -> None:
    """From the slot, or the due time, to the start: here, by the test's clock, ten minutes for the
    slot alone.
    """
    worker, metrics = played
    worker.tick("1h")
    worker.client.schedule("mail", id="1")
    worker.tick("10m")
    worker.run_due()
    found = metrics.counted()
    for name, labels in (
        ("slotwise_start_lateness_seconds", ("report",)),
        ("slotwise_queue_wait_seconds", ("report", "slot")),
        ("slotwise_queue_wait_seconds", ("mail", "task")),
    ):
        counts, total = found[name][labels]  # type: ignore[misc]
        assert (sum(counts), round(total)) == (1, 600), name
    assert ("mail",) not in found["slotwise_start_lateness_seconds"]


def test_a_retry_is_not_late() -> None:
    """Of a slot only the first attempt counts as its start; each attempt has waited, and has a
    duration.
    """

    @job(
        name="again",
        schedule=Every("1h"),
        retry=Retry.exponential(max_attempts=2, initial="1s"),
    )
    def again(ctx: JobContext) -> None:
        raise ValueError("no way")

    registry = JobRegistry(jobs=[again])
    metrics = Metrics(registry)
    with ManualWorker(registry) as worker:
        worker.tick("1h")
        worker.run_due()
        worker.tick("5s")
        worker.run_due()
    found = metrics.counted()
    counts = {name: sum(found[name]["again", "slot"][0]) for name in LONG}  # type: ignore[index, arg-type, misc]
    assert counts == dict.fromkeys(LONG, 2)
    assert sum(found["slotwise_start_lateness_seconds"]["again",][0]) == 1  # type: ignore[index, arg-type]


LONG = ("slotwise_duration_seconds", "slotwise_queue_wait_seconds")


def test_missed_slots_are_counted_with_their_reason(
    played: tuple[ManualWorker, Metrics],
) -> None:
    worker, metrics = played
    worker.tick("5h")
    worker.run_due()
    assert metrics.counted()["slotwise_slots_skipped"]["report", "collapsed"] == 4


def test_only_the_first_names_have_labels() -> None:
    registry = JobRegistry(jobs=[report, shy], tasks=[mail])
    metrics = Metrics(registry, max_names=1)
    with ManualWorker(registry) as worker:
        worker.client.schedule("mail", id="1")
        worker.tick("1h")
        worker.run_due()
        worker.tick("5s")
        worker.run_due()
    found = metrics.counted()[ATTEMPTS]
    assert len({name for name, *_ in found} - {"other"}) == 1
    assert sum(value for value in found.values() if not isinstance(value, tuple)) == 4


@pytest.mark.parametrize("wrong", [0, -1, True, "many", 100_001], ids=str)
def test_a_limit_that_is_none(wrong: object) -> None:
    with pytest.raises(
        ConfigurationError, match="write a whole number from 1 to 100000"
    ):
        Sums(wrong)  # type: ignore[arg-type]


def test_processes_combine_by_the_rule_of_each_figure() -> None:
    """Through JSON and back."""
    one: Snapshot = {
        "slotwise_capacity": {(): 4},
        "slotwise_heartbeat_age_seconds": {(): 3.0},
        "slotwise_ready": {(): 1},
        "slotwise_claim_seconds": {(): ([1, *[0] * 16], 0.5)},
        ATTEMPTS: {("a", "slot", "failed", "retry"): 1},
    }
    other: Snapshot = {
        "slotwise_capacity": {(): 2},
        "slotwise_heartbeat_age_seconds": {(): 5.0},
        "slotwise_ready": {(): 0},
        "slotwise_claim_seconds": {(): ([2, *[0] * 16], 1.0)},
        ATTEMPTS: {("b", "slot", "failed", "retry"): 1},
    }
    assert combined(from_plain(as_plain(each)) for each in (one, other)) == {
        "slotwise_capacity": {(): 6},
        "slotwise_heartbeat_age_seconds": {(): 5.0},
        "slotwise_ready": {(): 0},
        "slotwise_claim_seconds": {(): ([3, *[0] * 16], 1.5)},
        ATTEMPTS: {
            ("a", "slot", "failed", "retry"): 1,
            ("b", "slot", "failed", "retry"): 1,
        },
    }
    assert from_plain({"slotwise_of_a_later_version": []}) == {}


def test_figures_follow_the_conventions() -> None:
    """Base units at the end of a name, no suffix of the format in it."""
    for name, figure in FIGURES.items():
        assert name.startswith("slotwise_")
        assert not name.endswith(("_total", "_count", "_sum", "_bucket"))
        assert bool(figure.buckets) == (figure.kind is Kind.HISTOGRAM)


def test_a_database_that_does_not_answer_holds_up_no_scrape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The scrape goes on without figures of the cluster; the next one gets what has been read
    since.
    """
    monkeypatch.setattr("slotwise.contrib.metrics.meter.PATIENCE", 0.05)
    answers = threading.Event()

    class Inspect:
        def backlog(self) -> list[object]:
            answers.wait(30)
            return []

        def since_success(self, jobs: object) -> dict[str, SinceSuccess]:
            return {"report": success}

        def troubles(self) -> list[object]:
            return []

        def database(self) -> DatabaseInfo:
            return DatabaseInfo()

    success = SinceSuccess(since=timedelta(seconds=7), overdue=timedelta(0))

    reader = ClusterReader(lambda: Inspect(), lambda: ["report"])  # type: ignore[arg-type, return-value]
    began = time.monotonic()
    assert not reader.read().is_up
    assert time.monotonic() - began < 5
    answers.set()
    assert reader._thread is not None
    reader._thread.join(30)
    found = reader.read()
    assert (found.is_up, found.since_success) == (True, {"report": success})


def test_waits_for_a_connection_are_counted(pg_url: str) -> None:
    """Only those for which the pool had none left."""
    database = Database(Settings(database_url=pg_url), pool_size=1, overflow=0)
    try:
        with database.main.connect():
            assert database.pool_waits == (0, 0.0)
            assert database.pool_connections == (1, 0)
            other = threading.Thread(target=lambda: database.main.connect().close())
            other.start()
            time.sleep(0.3)
        other.join(30)
        count, seconds = database.pool_waits
        assert count == 1
        assert 0.2 < seconds < 10
    finally:
        database.close()


def test_a_port_without_the_library(
    monkeypatch: pytest.MonkeyPatch, metrics: Metrics
) -> None:
    """Probes need no extra; the figures say which one they need."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(
        sys.modules, "slotwise.contrib.metrics.prometheus", raising=False
    )
    port = Port("127.0.0.1:0", metrics)
    try:
        assert ask(port.number, "/livez") == (200, "ok\n")
        status, told = ask(port.number, "/metrics")
        assert (status, told) == (
            501,
            "the figures need prometheus-client: pip install 'slotwise[metrics]'\n",
        )
    finally:
        port.close()
