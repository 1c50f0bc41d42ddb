"""Two releases side by side: other jobs, or another schedule of the same job."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa
from tests.faults.bench import Bench
from tests.faults.conftest import MakeBench
from tests.kit.records import TICK
from tests.kit.times import succeed

from slotwise import Every, Item, Schedule

OLD, NEW = Every("1s"), Every("700ms")


def after(instant: datetime, stage: Bench, *jobs: str) -> None:
    for job in jobs:
        stage.wait("settled", job=job, slot=lambda slot: slot > instant)


def test_two_releases_with_other_jobs_leave_each_other_alone(bench: MakeBench) -> None:
    """The old release runs a and b, the new one b and c; what a release does not know stays
    untouched, and waits.
    """
    stage = bench("rerun,give-up,async", shutdown_grace="30s")
    old = stage.start("old", cast="rerun,give-up")
    stage.wait("settled", job="rerun")
    new = stage.start("new", cast="give-up,async")
    after(stage.now(), stage, "rerun", "give-up", "async")
    # A holder of something that the other does not know dies: nobody may touch it until somebody
    # knows it.
    victim = stage.wait("handler_start", job="rerun", by=old, after=stage.mark())
    old.kill()
    stage.wait("exit", by=old)
    after(stage.now(), stage, "give-up", "async")
    taken_over_without_knowing = {
        seen["job"] for seen in stage.events.all("reaped", by=new)
    } - {"give-up"}
    assert taken_over_without_knowing == set()
    stage.start("both", cast="rerun,give-up,async")
    stage.wait("settled", job="rerun", slot=victim["slot"])
    until = stage.now()
    after(until, stage, "rerun", "give-up", "async")
    assert set(stage.end_all()) == {0}
    known = {"old": {"rerun", "give-up"}, "new": {"give-up", "async"}}
    for seen in stage.events.all("claimed", "reaped", "settled", "planned"):
        assert seen["job"] in known.get(
            str(seen.worker), {"rerun", "give-up", "async"}
        )
    stage.expect_clean(until=until)


def test_a_schedule_changed_while_the_old_release_runs_belongs_to_both(
    bench: MakeBench,
) -> None:
    """Slots before the activation are the old text's, later ones the new text's, whoever runs
    them; none is lost.
    """
    stage = bench("rerun,give-up")
    old, second = stage.start_all(2)
    after(stage.now(), stage, "rerun", "give-up")

    changed = stage.now()
    new = stage.start("new", cast=f"rerun={NEW},give-up={NEW}")
    plans = [stage.wait("planned", by=new, job=job) for job in ("rerun", "give-up")]
    assert {plan["change"] for plan in plans} == {"changed"}
    up = stage.wait("worker_start", by=new)
    active = stage.now()
    second.kill(
        signal.SIGTERM
    )  # the rest of the old release leaves one by one, and runs the new text until then
    stage.wait(
        "settled",
        by=old,
        after=up,
        slot=lambda slot: slot > active and slot.microsecond != 0,
    )
    old.kill(signal.SIGTERM)
    until = stage.now()
    after(until, stage, "rerun", "give-up")
    stage.end_all()

    for job in ("rerun", "give-up"):
        assert any(
            all(
                finding.job != job
                for finding in stage.verdict(
                    until=until, schedules={job: schedule}
                ).findings
            )
            for schedule in _activated_between(changed, active)
        ), stage.verdict(until=until, schedules={job: succeed(OLD, active, NEW)})


def _activated_between(earliest: datetime, latest: datetime) -> Iterator[Schedule]:
    """Every schedule that the job may have had: the old one up to some instant in between, then
    the new one.
    """
    instants = {earliest, *OLD.slots(earliest, latest), *NEW.slots(earliest, latest)}
    return (
        succeed(OLD, instant, NEW)
        for instant in sorted({*instants, *(instant - TICK for instant in instants)})
    )


@pytest.mark.parametrize(
    "seconds",
    [
        4,
        pytest.param(10, marks=pytest.mark.extended),
        pytest.param(60, marks=pytest.mark.slow),
    ],
)
def test_a_rolling_deploy_loses_no_task(bench: MakeBench, seconds: int) -> None:
    """What the new release has written waits for its workers, beside old ones: none is lost, dead,
    or runs twice.
    """
    stage = bench("parcel,sealed", poll_interval="100ms")
    old, new = stage.start("old", beneath={"CAST_RELEASE": "1"}), stage.start("new")
    for player in (old, new):
        stage.wait("worker_start", by=player)
    client, until, count = stage.registry.client, time.monotonic() + seconds, 0
    while time.monotonic() < until:
        of_both = [Item({"grams": 1}, id=f"both-{count + n}") for n in range(5)]
        with stage.connect() as connection:  # as the old release schedules them
            client.schedule_many("parcel", of_both, connection=connection)
            stored = sa.text(
                "update scheduled_tasks set task_data = '{\"kilos\": 1}' where not picked"
                " and task_instance like 'both-%'"
            )
            connection.execute(stored)
        client.schedule_many(
            "parcel", [Item({"grams": 1}, id=f"new-{count + n}") for n in range(5)]
        )
        client.schedule_many(
            "sealed", [Item({"grams": 1}, id=f"new-{count + n}") for n in range(5)]
        )
        count += 5
        stage.rest(timedelta(milliseconds=200))
    stage.wait_for_empty_queue(within=75)
    stage.end_all()

    noted = Counter((line.job, line.instance) for line in stage.log.read())
    wanted = [("parcel", "both"), ("parcel", "new"), ("sealed", "new")]
    assert noted == {
        (job, f"{kind}-{n}"): 1 for job, kind in wanted for n in range(count)
    }
    assert {
        line.pid for line in stage.log.read() if line.instance.startswith("new")
    } == {new.pid}
    assert old.pid in {line.pid for line in stage.log.read()}
    assert stage.events.all("handed_back", by=old, reason="newer")


@pytest.mark.extended
def test_a_job_whose_version_was_raised_is_left_to_the_new_release(
    bench: MakeBench,
) -> None:
    """From its first plan on, beside workers of the old release; no slot is lost."""
    stage = bench("renewed", poll_interval="100ms")
    old = stage.start("old", beneath={"CAST_RELEASE": "1"})
    stage.wait("settled", by=old)
    new = stage.start("new")
    stage.wait("planned", by=new)
    planned = stage.now()
    for _ in range(8):
        after(stage.now(), stage, "renewed")
    until = stage.now()
    stage.end_all()
    starts = [
        line for line in stage.starts("renewed") if line.slot and line.slot > planned
    ]
    assert len(starts) >= 4
    assert {line.pid for line in starts} == {new.pid}
    stage.expect_clean(until=until)
