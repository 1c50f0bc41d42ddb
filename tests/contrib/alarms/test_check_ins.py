"""Check-ins of real attempts, to a receiver on the loopback."""

from __future__ import annotations

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
    job,
)
from slotwise.contrib.alarms import CheckIns, Healthchecks, SentryCrons
from slotwise.contrib.alarms.check_ins import CheckIn, slug_of
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
