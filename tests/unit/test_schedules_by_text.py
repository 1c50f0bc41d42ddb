"""Schedules as texts: on a job, and in the settings, where they outrank the code."""

from __future__ import annotations

from datetime import timedelta

import pytest

from slotwise import (
    CatchUp,
    ConfigurationError,
    Cron,
    Daily,
    Disabled,
    DistributedJob,
    Every,
    InvalidJob,
    InvalidSchedule,
    JobContext,
    JobRegistry,
    job,
    task,
)
from slotwise.spi import Spread, define


@job(name="report", schedule=Daily("02:00"))
def report(ctx: JobContext) -> None: ...


@job(name="spread", schedule=Every("1h"), spread="10m")
def spread(ctx: JobContext) -> None: ...


@task(name="mail")
def mail(ctx: JobContext) -> None: ...


def registry(**schedules: str) -> JobRegistry:
    return JobRegistry(jobs=[report, spread], tasks=[mail], schedules=schedules)


def test_a_job_may_say_its_schedule_as_text() -> None:
    """In a decorator, or in a class."""

    class Nightly(DistributedJob):
        name = "nightly"
        schedule = "CRON|30 2 * * *|Europe/Vienna"  # type: ignore[assignment]

        def execute(self, ctx: JobContext) -> None: ...

    assert define(Nightly).schedule == Cron("30 2 * * *", "Europe/Vienna")
    assert define(
        job(name="x", schedule="*/5 * * * *")(lambda ctx: None)
    ).schedule == Cron("*/5 * * * *")
    with pytest.raises(
        InvalidSchedule, match='schedule: minute must be 0–59, got "61"'
    ):
        define(job(name="x", schedule="61 * * * *")(lambda ctx: None))


def test_settings_outrank_the_code() -> None:
    """The others stay as they are; a spread applies to the new one."""
    found = registry(report="0 3 * * *", spread="EVERY|2h").definitions
    assert found["report"].schedule == Cron("0 3 * * *")
    assert isinstance(found["spread"].schedule, Spread)
    assert found["spread"].schedule.schedule == Every("2h")
    assert registry(report="-").definitions["report"].schedule == Disabled()
    assert registry().definitions["report"].schedule == Daily("02:00")


def test_settings_laid_over_later_count() -> None:
    """The command line's, for instance; taken back, the code counts again."""
    made = registry(report="0 3 * * *").configure(schedules={"report": "0 4 * * *"})
    assert made.definitions["report"].schedule == Cron("0 4 * * *")
    assert made.configure(schedules={}).definitions["report"].schedule == Daily(
        "02:00"
    )


@pytest.mark.parametrize(
    ("schedules", "error", "words"),
    [
        (
            {"raport": "-"},
            ConfigurationError,
            r"'raport', which is not registered; did you mean 'report'",
        ),
        ({"mail": "-"}, InvalidJob, r"schedules\['mail'\]: 'mail' is a one-time task"),
        (
            {"report": "25 25 * * *"},
            InvalidSchedule,
            r"schedules\['report'\]: hour must be 0–23, got \"25\"",
        ),
        ({"spread": "FIXED_DELAY|1m"}, InvalidJob, r"schedules\['spread'\].spread"),
    ],
    ids=["unknown", "task", "wrong", "spread"],
)
def test_mistakes_name_the_place(
    schedules: dict[str, str], error: type[Exception], words: str
) -> None:
    """When the registry is made, not at the first slot."""
    with pytest.raises(error, match=words):
        registry(**schedules)


def test_catching_up_is_checked_for_what_is_not_bound_yet() -> None:
    """An H has an interval once the name is known; a calendar's days only the database knows."""
    for schedule in (Cron("H * * * *"), Cron("0 9 * * *").excluding("AT")):
        assert (
            define(
                job(name="x", schedule=schedule, catch_up=CatchUp.all())(
                    lambda ctx: None
                )
            ).schedule
            == schedule
        )
    slow = CatchUp.all(pace=timedelta(hours=2))
    with pytest.raises(InvalidJob, match="never catches up"):
        define(
            job(name="x", schedule=Cron("H * * * *"), catch_up=slow)(lambda ctx: None)
        )
