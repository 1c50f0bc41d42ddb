"""Jobs with a lock key, from code and from ``CRON_JOBS``: bound to handlers, or refused with every
problem at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from slotwise import InvalidCronJobs, InvalidJob, JobContext, JobRegistry
from slotwise.contrib.advisory import (
    KeyedJob,
    bind_cron_jobs,
    distributed_scheduled,
    read_lock_keys,
)
from slotwise.contrib.advisory.gate import AdvisoryGate
from slotwise.testing import ManualWorker

GUIDELINE = Path(__file__).with_name("guideline.toml")
MINUTELY = "0 */1 * * * *"


def token_cleanup(ctx: JobContext) -> None:
    """A handler in Python's spelling."""


def sessionPrune(ctx: JobContext) -> None:  # noqa: N802
    """A handler in the spelling of CRON_JOBS."""


def declared(**options: Any) -> Callable[[Any], KeyedJob]:
    return distributed_scheduled(**{"cron": MINUTELY, "lock_key": 1301, **options})


def cron_jobs(**entries: tuple[object, object]) -> dict[str, str]:
    written = {
        name: {"schedule": schedule, "lockKey": key}
        for name, (schedule, key) in entries.items()
    }
    return {"CRON_JOBS": json.dumps(written)}


def test_the_guideline_s_annotation() -> None:
    """The name of the method, its schedule and its key; it can still be called."""

    @distributed_scheduled(cron="0 */1 * * * *", lock_key=5001)
    def cleanup(ctx: JobContext) -> int:
        return 7

    assert (cleanup.name, cleanup.lock_key, str(cleanup.schedule)) == (
        "cleanup",
        5001,
        "CRON|0 */1 * * * *|UTC|day_rule=and",
    )
    assert JobRegistry(jobs=[cleanup]).jobs[0].name == "cleanup"


def test_names_and_policies() -> None:
    """``<service>.<job>``, and the policies of any job."""
    found = declared(service="lt-credit-service", name="tokenCleanup", timeout="1m")(
        token_cleanup
    )
    assert found.name == "lt-credit-service.tokenCleanup"
    (definition,) = JobRegistry(jobs=[found]).jobs
    assert definition.timeout is not None
    assert definition.timeout.total_seconds() == 60


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ({"cron": "61 * * * *"}, ["token_cleanup.cron: minute must be 0–59"]),
        (
            {"cron": "61 * * * *", "lock_key": "1301"},
            ["token_cleanup.cron:", 'token_cleanup.lock_key: "1301" is'],
        ),
        (
            {"cron": "0 0 2 * * *"},
            [
                "fixes its hour, and no zone is named; write tz= or set CRON_TZ, e.g. to the zone"
            ],
        ),
        (
            {"lock_key": 2**63},
            [
                "lock_key: 9223372036854775808 is not from 1 to 9223372036854775807; take a key"
            ],
        ),
        ({"lock_key": 0}, ["lock_key: 0 is not from 1 to"]),
        ({"schedule": "x"}, ["unknown argument schedule; write cron="]),
        ({"nonsense": 1}, ["unknown argument nonsense; remove it"]),
        ({"name": ""}, ["name must not be empty"]),
        ({"service": " "}, ["service must not be empty"]),
        ({"tz": "Mars/Olympus"}, ["@distributed_scheduled: tz: "]),
    ],
)
def test_a_declaration_is_refused(
    options: dict[str, Any], lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line for each problem, with the name of the decorator."""
    monkeypatch.delenv("CRON_TZ", raising=False)
    with pytest.raises(InvalidJob) as caught:
        declared(**options)(token_cleanup)
    told = str(caught.value).splitlines()
    assert len(told) == len(lines)
    for line, words in zip(told, lines, strict=True):
        assert line.startswith("@distributed_scheduled: ")
        assert words in line


def test_cron_tz(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule that fixes an hour needs the zone of the fleet: from the environment, or
    given.
    """
    monkeypatch.setenv("CRON_TZ", "Europe/Vienna")
    from_environment = declared(cron="0 0 2 * * *")(token_cleanup)
    given = declared(cron="0 0 2 * * *", tz="UTC")(token_cleanup)
    assert "Europe/Vienna" in str(from_environment.schedule)
    assert "UTC" in str(given.schedule)
    entries = cron_jobs(tokenCleanup=("0 0 2 * * *", 1301))
    (bound,) = bind_cron_jobs(
        [token_cleanup], environ={**entries, "CRON_TZ": "Europe/Vienna"}
    )
    assert "Europe/Vienna" in str(bound.schedule)
    with pytest.raises(InvalidCronJobs, match="no zone is named"):
        bind_cron_jobs([token_cleanup], environ=entries)


def test_entries_are_bound_by_name() -> None:
    """In either spelling, or by a name that is given; a handler without an entry does not run."""
    environ = cron_jobs(
        tokenCleanup=(MINUTELY, 1301), sessionPrune=("0 */5 * * * *", 1302)
    )
    found = bind_cron_jobs(
        [token_cleanup, sessionPrune, print], environ=environ, service="s"
    )
    assert [(job.name, job.lock_key, job.execute.func) for job in found] == [
        ("s.tokenCleanup", 1301, token_cleanup),
        ("s.sessionPrune", 1302, sessionPrune),
    ]
    (other,) = bind_cron_jobs(
        {"prune": token_cleanup}, environ=cron_jobs(prune=(MINUTELY, 1301))
    )
    assert (other.name, other.execute.func) == ("prune", token_cleanup)


def test_every_problem_is_in_one_error() -> None:
    """Problems of the entries, of jobs beside them, and of the handlers."""
    beside = [
        declared(lock_key=1301)(token_cleanup),
        declared(lock_key=1301, name="again")(token_cleanup),
    ]
    environ = cron_jobs(
        tokenCleanup=("61 * * * *", 1301),
        nobody=(MINUTELY, 1302),
        sessionPrune=(MINUTELY, 1351),
        bad=(MINUTELY, "1"),
    )
    with pytest.raises(InvalidCronJobs) as caught:
        bind_cron_jobs(
            [token_cleanup, sessionPrune, sessionPrune],
            environ=environ,
            beside=beside,
            service="lt-credit-service",
            lock_keys=read_lock_keys(GUIDELINE),
        )
    assert [problem.partition(": ")[0] for problem in caught.value.problems] == [
        "sessionPrune",
        "again.lockKey",
        "tokenCleanup.schedule",
        "tokenCleanup.lockKey",
        "nobody",
        "sessionPrune.lockKey",
        "bad",
        "bad.lockKey",
    ]
    assert all(
        "; " in problem or "must be 0–59" in problem
        for problem in caught.value.problems
    )


def test_without_the_variable() -> None:
    """It must be set: an empty fleet is written as {}."""
    with pytest.raises(InvalidCronJobs, match=r"^CRON_JOBS is not set; write "):
        bind_cron_jobs([token_cleanup], environ={})
    assert bind_cron_jobs([token_cleanup], environ={"CRON_JOBS": "{}"}) == []


def test_the_gate_takes_the_jobs(pg_empty_url: str) -> None:
    """The jobs carry their keys: while a slot runs, other programs do not get the key."""
    got: list[object] = []
    with psycopg.connect(pg_empty_url, autocommit=True) as other:

        def cleanup(ctx: JobContext) -> None:
            got.append(other.execute("SELECT pg_try_advisory_lock(1301)").fetchone())

        jobs = bind_cron_jobs(
            [cleanup], environ=cron_jobs(cleanup=(MINUTELY, 1301)), service="s"
        )
        registry = JobRegistry(
            jobs=jobs, before_start=[AdvisoryGate(pg_empty_url, jobs)]
        )
        with ManualWorker(registry) as worker:
            worker.tick("1m")
            worker.run_due()
    assert got == [(False,)]
