"""Who plays in a simulated world: jobs and tasks of every kind."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import tenacity

from slotwise import (
    CatchUp,
    Cron,
    Disabled,
    Every,
    FixedDelay,
    Overlap,
    Retry,
    Schedule,
    job,
    task,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

#: What the job "changing" is redeployed with.
SCHEDULES: list[Schedule] = [
    Every("1m"),
    Every("2m", anchor=NOON + timedelta(seconds=30)),
    Every("37s"),
    Cron("*/3 * * * *"),
    Disabled(),
]

#: What the first worker carries, and no other.
TAG = "narrow"


def subjects(changing: Schedule) -> list[object]:
    """The retry has no jitter, so that a seed says all."""
    retry = Retry(max_attempts=3, wait=tenacity.wait_fixed(4))
    paced = CatchUp.all(max=6, pace="7s")
    return [
        job(name="rerun", schedule=Every("20s"))(print),
        job(name="retried", schedule=Every("45s"), retry=retry)(print),
        job(name="giving", schedule=Every("20s"), on_lost="give_up", priority=90)(
            print
        ),
        job(name="rarely", schedule=Every("150s"), on_lost="give_up")(print),
        job(name="delayed", schedule=FixedDelay("15s"))(print),
        job(
            name="apart",
            schedule=Every("20s"),
            spread="15s",
            min_interval="50s",
            retry=retry,
        )(print),
        job(
            name="abreast",
            schedule=Every("20s"),
            overlap=Overlap.allow(2),
            retry=retry,
        )(print),
        job(
            name="replaced",
            schedule=Every("20s"),
            overlap=Overlap.cancel_previous(),
            on_lost="give_up",
        )(print),
        job(
            name="queued", schedule=Every("20s"), overlap=Overlap.queue(2), priority=10
        )(print),
        job(
            name="paced",
            schedule=Every("30s"),
            overlap=Overlap.queue_all(),
            catch_up=paced,
            retry=retry,
        )(print),
        job(name="prompt", schedule=Every("45s"), start_within="20s", runs_on=(TAG,))(
            print
        ),
        job(name="poison", schedule=Every("3m"), max_lost=2)(print),
        job(name="changing", schedule=changing)(print),
        task(name="mail", retry=retry)(print),
        task(name="once", on_lost="give_up", priority=90)(print),
        task(name="few", concurrency=2, retry=retry)(print),
        task(name="slow", rate_limit="2/30s")(print),
    ]
