"""The application that slotwise's workers run in a benchmark: handlers that only note that they
started.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from slotwise import (
    Context,
    DistributedJob,
    Every,
    JobContext,
    JobRegistry,
    OneTimeTask,
    job,
    task,
)
from tools.bench.journal import Journal

TASK = "bench"
OTHER = "bench-other"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

#: What becomes of a task whose worker is lost.
OnLost: TypeAlias = Literal["rerun", "give_up"]
#: Returns the id under which a start is noted.
Number = Callable[[JobContext], int]


def job_name(number: int) -> str:
    return f"bench-{number:06}"


def make_registry() -> JobRegistry:
    """Return the registry for ``worker --app``, with the jobs or tasks that BENCH_OPTIONS
    describes.
    """
    options = json.loads(os.environ["BENCH_OPTIONS"])
    note = Journal(Path(os.environ["BENCH_JOURNAL"])).note
    if options["kind"] == "tasks":
        how = {
            name: options[name]
            for name in ("is_async", "on_lost", "is_data")
            if name in options
        }
        made = JobRegistry(tasks=[_task(note, **how)])
        if options.get("is_traced"):
            from slotwise.contrib.otel import instrument

            instrument(made)
        return made
    if options["kind"] == "flood":
        return JobRegistry(
            tasks=[
                _slow(note, options["takes"] / 1000),
                _task(note, is_async=False, name=OTHER),
            ]
        )
    number = {"jobs": _by_job, "slots": _by_slot}[options["kind"]]
    return JobRegistry(
        jobs=make_jobs(options["schedules"] * options.get("times", 1), note, number)
    )


def make_jobs(
    schedules: list[tuple[float, float]], note: Callable[[int], None], number: Number
) -> list[DistributedJob]:
    """Return a job for each (interval, anchor), both in seconds."""
    return [
        _job(
            place,
            Every(
                timedelta(seconds=interval), anchor=_EPOCH + timedelta(seconds=anchor)
            ),
            note,
            number,
        )
        for place, (interval, anchor) in enumerate(schedules, 1)
    ]


def _task(
    note: Callable[[int], None],
    *,
    is_async: bool,
    name: str = TASK,
    on_lost: OnLost = "rerun",
    is_data: bool = False,
) -> OneTimeTask[Any]:
    def run_data(ctx: Context) -> None:
        note(cast("int", ctx.data))

    def run(ctx: Context) -> None:
        note(int(ctx.id))

    async def run_async(ctx: Context) -> None:
        note(int(ctx.id))

    return task(name=name, on_lost=on_lost)(
        run_data if is_data else run_async if is_async else run
    )


def _slow(note: Callable[[int], None], seconds: float) -> OneTimeTask[Any]:
    def run(ctx: Context) -> None:
        note(int(ctx.id))
        if seconds:
            time.sleep(seconds)

    return task(name=TASK)(run)


def _job(
    place: int, schedule: Every, note: Callable[[int], None], number: Number
) -> DistributedJob:
    def run(ctx: JobContext) -> None:
        note(number(ctx))

    return job(name=job_name(place), schedule=schedule)(run)


def _by_job(ctx: JobContext) -> int:
    return int(ctx.name[-6:])


def _by_slot(ctx: JobContext) -> int:
    """Return the slot's instant, which is unique since the jobs are staggered."""
    return (ctx.slot - _EPOCH) // _MICROSECOND
