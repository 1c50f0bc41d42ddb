"""The definition of a job or task: read and validated once, at registration."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import TYPE_CHECKING

from slotwise.errors import InvalidJob
from slotwise.jobs.declaration import (
    POLICIES,
    UNSAID,
    USUAL_PRIORITY,
    declared_schedule,
    handler_of,
    instance_of,
    label_of,
    name_of,
    parsed,
    payload_of,
    policy_of,
    refuse_near_misses,
    spread_by,
)
from slotwise.jobs.job import DistributedJob, OneTimeTask
from slotwise.jobs.policies import TASK_RETRY, CatchUp, Overlap, Rate, Retry
from slotwise.model.durations import format_duration
from slotwise.model.vocabulary import LossPolicy
from slotwise.payload.payload import UNTYPED, Payload
from slotwise.schedules import Once, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

_SAMPLE = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The policies of a job (``schedule`` is set) or a one-time task (``schedule`` is None), with its handler."""

    name: str
    handler: Callable[..., object]
    is_async: bool
    schedule: Schedule | None = None
    catch_up: CatchUp = field(default_factory=CatchUp.latest)
    overlap: Overlap = field(default_factory=Overlap.skip)
    on_lost: str = LossPolicy.RERUN
    max_lost: int = 3
    retry: Retry | None = None
    timeout: timedelta | None = None
    start_within: timedelta | None = None
    spread: timedelta | None = None
    payload: Payload = UNTYPED
    min_interval: timedelta | None = None
    priority: int = USUAL_PRIORITY
    runs_on: frozenset[str] = frozenset()
    record: str = "none"
    result_retention: timedelta | None = None
    concurrency: int | None = None
    rate_limit: Rate | None = None
    isolation: str | None = None
    is_job: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_job", self.schedule is not None)

    @property
    def is_weighed(self) -> bool:
        """Whether each slot needs a decision, also one on time: it may be too late to start, or find no place."""
        limits = (self.start_within, self.catch_up.window)
        return any(limit is not None for limit in limits) or self.catch_up.mode == "none" or self.overlap.detaches

    def may_run_on(self, tags: AbstractSet[str]) -> bool:
        """Whether a worker that carries these tags may run it."""
        return self.runs_on <= tags

    @property
    def is_limited(self) -> bool:
        """Whether only some of its due rows may start; they are claimed in a statement of their own."""
        return self.concurrency is not None or self.rate_limit is not None

    @property
    def leaves_traces(self) -> bool:
        """Whether a success writes more than the end of its row."""
        return self.record == "all" or self.result_retention is not None

    @property
    def gives_up(self) -> bool:
        """Whether each slot starts at most once."""
        return self.on_lost == LossPolicy.GIVE_UP

    @property
    def fingerprint(self) -> str:
        """Return a short hash of the schedule and policies, which is stored in the row and compared at a redeploy."""
        text = "\n".join(
            repr(part) for part in (str(self.schedule), self.catch_up, self.overlap, self.on_lost, self.max_lost)
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def define(subject: object) -> Definition:
    """Read a job or task (an instance, or a class that takes no arguments). Raises InvalidJob with the cure."""
    source = instance_of(subject)
    where = label_of(source)
    is_job = isinstance(source, DistributedJob)
    name = name_of(source, where)
    refuse_near_misses(source, where)
    policies = {word: policy_of(source, where, word) for word in POLICIES}
    if policies["retry"] is UNSAID:
        policies["retry"] = None if is_job or policies["on_lost"] == LossPolicy.GIVE_UP else TASK_RETRY
    handler = handler_of(source, where)
    definition = Definition(
        name=name,
        handler=handler,
        is_async=inspect.iscoroutinefunction(handler),
        schedule=spread_by(declared_schedule(source, where), where, name, policies["spread"]) if is_job else None,
        payload=payload_of(source, where) if isinstance(source, OneTimeTask) else UNTYPED,
        **policies,
    )
    if definition.gives_up and definition.retry is not None:
        raise InvalidJob(f'{where}: retry contradicts on_lost="give_up" (at most one start); drop one of them')
    if definition.min_interval is not None and definition.overlap.detaches:
        raise InvalidJob(f"{where}: min_interval contradicts Overlap.{definition.overlap.mode}; drop one of them")
    if definition.schedule is not None:
        check_schedule(definition.schedule, definition, where)
    return definition


def rescheduled(definition: Definition, text: str, where: str) -> Definition:
    """Return the job with the schedule of the settings. Raise InvalidSchedule or InvalidJob."""
    if not definition.is_job:
        raise InvalidJob(f"{where}: {definition.name!r} is a one-time task, it has no schedule; remove it there")
    schedule = spread_by(parsed(text, where), where, definition.name, definition.spread)
    check_schedule(schedule, definition, where)
    return replace(definition, schedule=schedule)


def check_schedule(schedule: Schedule, definition: Definition, where: str) -> None:
    """Raise InvalidJob if the policies do not fit: nothing can overlap, or catching up would never end."""
    if schedule.from_end and definition.overlap.detaches:
        raise InvalidJob(f"{where}: {schedule} starts after the end of a run: nothing overlaps; drop overlap")
    if definition.catch_up.mode != "all":
        return
    if schedule.from_end:
        raise InvalidJob(f"{where}: {schedule} misses no slots, so CatchUp.all() means nothing; remove catch_up")
    if isinstance(schedule, Once):
        raise InvalidJob(f"{where}: {schedule} has one slot, so CatchUp.all() means nothing; remove catch_up")
    shortest = shortest_interval(schedule, definition.name)
    for word, least in (("CatchUp.all(pace", definition.catch_up.pace), ("(min_interval", definition.min_interval)):
        if least is not None and shortest is not None and least >= shortest:
            raise InvalidJob(
                f"{where}: {word}={format_duration(least)}) never catches up with a schedule that comes "
                f"every {format_duration(shortest)}; make it shorter"
            )


def shortest_interval(schedule: Schedule, name: str, count: int = 100) -> timedelta | None:
    """Return the shortest of the next ``count`` intervals; None if a schedule has none, or depends on a calendar that
    only the database has.
    """
    if schedule.from_end or None in schedule.calendars.values():
        return None
    slots = list(islice(schedule.bind(name).slots(_SAMPLE, _SAMPLE + timedelta(days=3660)), count + 1))
    return min((after - before for before, after in pairwise(slots)), default=None)
