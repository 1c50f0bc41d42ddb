"""Check-ins of real attempts, to a receiver on the loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.contrib.alarms.receivers import Receiver, receiving

from slotwise import (
    ConfigurationError,
    InvalidSetting,
    JobContext,
    JobRegistry,
    Retry,
    TaskContext,
    job,
    task,
)
from slotwise.contrib.alarms import CheckIns, Healthchecks, SentryCrons
from slotwise.contrib.alarms.check_ins import CheckIn, run_of, slug_of
from slotwise.spi import HandlerStarted
from slotwise.testing import ManualClock, ManualWorker

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


class Runs:
    """A job that succeeds or fails as told, with one retry, and one that nobody reports."""

    def __init__(self, service: Any) -> None:
        self.fails = False

        @job(
            name="report",
            schedule="0 * * * *",
            retry=Retry.exponential(max_attempts=2, initial="1s"),
        )
        def report(ctx: JobContext) -> None:
            if self.fails:
                raise OSError("no space left")

        @job(name="other", schedule="0 * * * *")
        def other(ctx: JobContext) -> None:
            pass

        registry = JobRegistry(jobs=[report, other])
        self.check_ins = CheckIns(registry, {"report": service})
        self.worker = ManualWorker(registry, clock=ManualClock(NOON))

    def run(self, by: str) -> None:
        self.worker.tick(by)
        self.worker.run_due()
        assert self.check_ins.flush(60)


@pytest.fixture
def runs(request: pytest.FixtureRequest, receiver: Receiver) -> Iterator[Runs]:
    found = Runs(request.param(receiver))
    with found.worker:
        yield found


def of_healthchecks(receiver: Receiver) -> Healthchecks:
    return Healthchecks(receiver.url)


def of_sentry(receiver: Receiver) -> SentryCrons:
    return SentryCrons(
        f"http://key@127.0.0.1:{receiver.server_port}/42", crontab="0 * * * *"
    )


@pytest.mark.parametrize("runs", [of_healthchecks], indirect=True)
def test_healthchecks_hears_of_start_and_success(
    runs: Runs, receiver: Receiver
) -> None:
    """With the same id of the run."""
    runs.run("1h")
    paths = [one.path.partition("?rid=") for one in receiver.requests]
    assert [one[0] for one in paths] == ["/hook/start", "/hook"]
    assert paths[0][2] == paths[1][2] != ""


@pytest.mark.parametrize("runs", [of_healthchecks], indirect=True)
def test_a_retry_is_no_failure(runs: Runs, receiver: Receiver) -> None:
    """The service hears of a failure when no attempt is left, with the error."""
    runs.fails = True
    runs.run("1h")
    runs.run("10s")
    paths = [one.path.partition("?")[0] for one in receiver.requests]
    assert paths == ["/hook/start", "/hook/start", "/hook/fail"]
    assert b"no space left" in receiver.requests[-1].body


@pytest.mark.parametrize("runs", [of_sentry], indirect=True)
def test_sentry_hears_of_a_monitor(runs: Runs, receiver: Receiver) -> None:
    runs.run("1h")
    first, second = (one.json for one in receiver.requests)
    assert {one.path for one in receiver.requests} == {"/api/42/cron/report/key/"}
    assert (first["status"], second["status"]) == ("in_progress", "ok")
    assert first["check_in_id"] == second["check_in_id"]
    assert first["monitor_config"]["schedule"] == {
        "type": "crontab",
        "value": "0 * * * *",
    }


@pytest.mark.parametrize("runs", [of_sentry], indirect=True)
def test_all_attempts_are_one_run(runs: Runs, receiver: Receiver) -> None:
    """Else the check-in of the first attempt would stay open, and Sentry report a time-out."""
    runs.fails = True
    runs.run("1h")
    runs.fails = False
    runs.run("10s")
    found = [one.json for one in receiver.requests]
    assert [one["status"] for one in found] == ["in_progress", "in_progress", "ok"]
    assert len({one["check_in_id"] for one in found}) == 1
    runs.run("1h")
    assert receiver.requests[-1].json["check_in_id"] != found[0]["check_in_id"]


def test_a_task_that_is_tried_again_is_one_run(receiver: Receiver) -> None:
    """One that has the id of an earlier one is another."""
    fails = [True, False, False]

    @task(name="mail", retry=Retry.exponential(max_attempts=2, initial="1s"))
    def mail(ctx: TaskContext[str]) -> None:
        if fails.pop(0):
            raise OSError("no space left")

    registry = JobRegistry(tasks=[mail])
    check_ins = CheckIns(registry, {"mail": of_sentry(receiver)})
    with ManualWorker(registry, clock=ManualClock(NOON)) as worker:
        for _ in range(2):
            worker.client.schedule(mail, "x", id="1")
            worker.run_due()
            worker.tick("10s")
            worker.run_due()
        assert check_ins.flush(60)
    found = [
        (one.json["status"], one.json["check_in_id"]) for one in receiver.requests
    ]
    assert [status for status, _ in found] == [
        *["in_progress", "in_progress", "ok"],
        *["in_progress", "ok"],
    ]
    ids = [id for _, id in found]
    assert len(set(ids[:3])) == len(set(ids[3:])) == 1
    assert ids[0] != ids[3]


@pytest.mark.parametrize("made", [None, 7])
def test_another_worker_has_the_same_id_of_a_run(made: int | None) -> None:
    """Of a task by its row, whatever the token of the attempt; else by the token."""
    facts = {"job": "mail", "id": "1", "slot": None, "created_version": made}
    first = HandlerStarted(**facts, attempt=1, token=8, worker="a")
    second = HandlerStarted(**facts, attempt=2, token=9, worker="b")
    assert (run_of(first) == run_of(second)) is (made is not None)
    later = HandlerStarted(**{**facts, "created_version": 11}, attempt=1, token=12)
    assert run_of(later) != run_of(first)


def test_a_slow_service_delays_no_other(receiver: Receiver) -> None:
    """Each has a queue and a thread of its own."""
    blocked = threading.Event()

    class Slow:
        def send(self, check_in: CheckIn) -> None:
            blocked.wait(60)

    runs = Runs([Slow(), of_healthchecks(receiver)])
    with runs.worker:
        runs.worker.tick("1h")
        runs.worker.run_due()
        assert receiver.arrived.acquire(timeout=20)
        assert receiver.arrived.acquire(timeout=20)
        assert not runs.check_ins.flush(0.0)
        blocked.set()
        assert runs.check_ins.flush(60)


class Down:
    """A service that refuses."""

    def send(self, check_in: CheckIn) -> None:
        raise OSError("down")


def test_a_service_that_is_down_delays_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check-ins are counted as lost."""
    monkeypatch.setattr("slotwise.contrib.alarms.check_ins.PAUSE", 0.0)
    runs = Runs(Down())
    with runs.worker:
        runs.run("1h")
        (slot,) = runs.worker.inspect.slots("report")
    assert slot.outcome == "succeeded"
    assert runs.check_ins.lost == 2


def test_too_many_drop_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotwise.contrib.alarms.check_ins.MOST_WAITING", 1)
    monkeypatch.setattr("slotwise.contrib.alarms.check_ins.PAUSE", 0.0)
    runs = Runs(Down())
    with runs.worker:
        for _ in range(5):
            runs.run("1h")
    assert runs.check_ins.lost == 10


def test_names_must_be_registered() -> None:
    @job(name="report", schedule="0 * * * *")
    def report(ctx: JobContext) -> None:
        pass

    with pytest.raises(
        ConfigurationError, match="'reprot' is not registered; known are report"
    ):
        CheckIns(JobRegistry(jobs=[report]), {"reprot": Healthchecks("http://x")})


@pytest.mark.parametrize("dsn", ["https://host/1", "https://key@host", "key@host/1"])
def test_a_wrong_dsn_is_refused(dsn: str) -> None:
    with pytest.raises(InvalidSetting):
        SentryCrons(dsn)


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("Nightly Report", "nightly-report"),
        ("a/b", "a-b"),
        ("日報", "job"),
        ("a_b-1", "a_b-1"),
    ],
)
def test_slugs(name: str, slug: str) -> None:
    assert slug_of(name) == slug
