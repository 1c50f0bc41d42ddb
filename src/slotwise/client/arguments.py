"""Validate the arguments of the client: tasks, ids, times, priorities. A mistake is reported in
one line.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from itertools import chain
from typing import Generic, Never, TypeAlias

from slotwise.errors import (
    ConfigurationError,
    InstanceExists,
    InvalidJob,
    InvalidSetting,
    UnknownTask,
)
from slotwise.jobs.context import T
from slotwise.jobs.definition import (
    PRIORITIES,
    USUAL_PRIORITY,
    Definition,
    check_schedule,
    is_priority,
)
from slotwise.jobs.functions import Call
from slotwise.jobs.job import DistributedJob, OneTimeTask, declared
from slotwise.jobs.payload_reader import payload_of
from slotwise.model.clock import host_now
from slotwise.model.durations import parse_duration
from slotwise.model.records import (
    EARLIEST,
    FOREVER,
    KNOWN_YEARS,
    RECURRING,
    Key,
    Wanted,
    When,
    is_known,
    is_whole,
)
from slotwise.model.values import Value
from slotwise.model.vocabulary import TASK_STATES, ListedState
from slotwise.payload.payload import UNTYPED, Payload
from slotwise.schedules import Schedule, parse_schedule
from slotwise.store.dialects.task_statements import Status
from slotwise.store.planning.instances import Instance
from slotwise.store.queue.queue import TaskInfo

ID_LIMIT = 250

IF_EXISTS = ("keep", "raise", "replace", "reschedule")

#: The largest value that the column can store.
MOST_ARRIVALS = 2_147_483_647

#: Prefixes of the ids of a job's own rows.
_OF_A_JOB = (f"{RECURRING}@", "trigger:")

#: A task with any data: its class, an instance of it, a function under ``@task``; or its name, if
#: another process registers it.
Task: TypeAlias = OneTimeTask[Never, Never] | type[OneTimeTask[Never, Never]] | str
#: The same, or a job.
AnyTask: TypeAlias = (
    DistributedJob[Never, Never] | type[DistributedJob[Never, Never]] | Task
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt(Value):
    """The result of a command on a task.

    ``status``: "scheduled" (it waits for its due time), "exists" (its id was taken, nothing was
    changed), "running" (a worker holds it at this moment), "cancelled" (removed before it ran), or
    "gone" (there is none).
    """

    task: str
    id: str
    status: Status


@dataclass(slots=True)
class Item(Generic[T]):
    """One item for ``schedule_many``, if more than the data differs.

    Unlike other values it is not frozen, because creating a million frozen ones takes twice as
    long.
    """

    data: T
    _: KW_ONLY
    id: str | None = None
    at: datetime | None = None
    delay: timedelta | str | None = None
    priority: int | None = None


def called(task: object, data: object, where: str) -> tuple[object, object]:
    """Return a task and its data, which may be given as a call. Raise ConfigurationError for data
    beside a call.
    """
    if not isinstance(task, Call):
        return task, data
    if data is not None:
        raise ConfigurationError(
            f"{where}: the call of {given_name(task.task, 'a task')!r} has its data; "
            f"remove {data!r:.60}"
        )
    return task.task, task.data


def same_task(calls: object) -> tuple[object, Iterator[object]]:
    """Return the task of these calls, and the calls; no task if there are none. Raise
    ConfigurationError for what is no call.
    """
    if isinstance(calls, str | bytes | type | OneTimeTask) or not isinstance(
        calls, Iterable
    ):
        raise ConfigurationError(
            f"schedule_many({calls!r:.60}): the items are missing; pass a task and items, or "
            "calls of one task: [send_mail.call(to=to) for to in names]"
        )
    rest = iter(calls)
    for first in rest:
        call = first.data if isinstance(first, Item) else first
        if not isinstance(call, Call):
            raise ConfigurationError(
                f"schedule_many: items[0] is {first!r:.60}, and no call; pass the task, too"
            )
        return call.task, chain([first], rest)
    return None, iter(())


def data_for(name: str, data: object) -> object:
    """Return the data of a call of this task, or data as they are."""
    if not isinstance(data, Call):
        return data
    of = given_name(data.task, "a task")
    if of != name:
        raise ConfigurationError(
            f"it is a call of {of!r} among those of {name!r}; pass the calls of one task at a time"
        )
    return data.data


def task_name(task: object) -> str:
    """Return the name of a one-time task. Raise InvalidJob."""
    name = given_name(
        task, "a task; pass a OneTimeTask, a function under @task, or a name"
    )
    refuse_a_job(
        name,
        issubclass(task if isinstance(task, type) else type(task), DistributedJob),
    )
    return name


def given_name(subject: object, need: str) -> str:
    """Return the name of a job or a task, which may be given itself. Raise InvalidJob: it is not
    what is needed.
    """
    name = subject if isinstance(subject, str) else declared(subject, "name")
    is_ours = isinstance(subject, str | DistributedJob | OneTimeTask | type)
    if not is_ours or not isinstance(name, str) or not name.strip():
        raise InvalidJob(f"{subject!r} is not {need}")
    return name


def name_of(job: AnyTask) -> str:
    """Return the name of a job, which may be given itself. Raises InvalidJob."""
    return given_name(job, "a job; pass a DistributedJob or its name")


def instant_of(given: datetime) -> datetime:
    """Return a slot in UTC. Raises ConfigurationError for what can be none."""
    if not isinstance(given, datetime) or given.utcoffset() is None:
        raise ConfigurationError(
            f"{given!r} is not an instant; pass an aware datetime, e.g. datetime(…, tzinfo=UTC)"
        )
    if not is_known(given):
        raise ConfigurationError(
            f"{given.isoformat()} is not a slot: slots lie in {KNOWN_YEARS}"
        )
    return given.astimezone(UTC)


def optional_instant(given: datetime | None) -> datetime | None:
    """As ``instant_of``; None stays None."""
    return None if given is None else instant_of(given)


def refuse_a_job(name: str, is_job: bool) -> None:
    """Raise InvalidJob: no worker would ever claim a one-time row under the name of a job."""
    if is_job:
        raise InvalidJob(
            f"{name!r} is a job, its schedule says when it runs; pass a one-time task"
        )


def refuse_a_slip(name: str, known: Iterable[str], call: str = "schedule") -> None:
    """Raise UnknownTask for a name that is one letter off a known one; any other may be another
    service's.
    """
    for near in known:
        if _is_a_slip(name, near):
            raise UnknownTask(
                f"{call}({name!r}): no task of this name is registered; did you "
                f"mean {near!r}? If another service runs it, declare it here with @task(name=…)"
            )


def _is_a_slip(given: str, known: str) -> bool:
    """Whether a letter was added, left out or replaced, or two were swapped. Digits are no slip:
    they number tasks.
    """
    start = _shared(given, known)
    one = given[start:]
    other = known[start:]
    end = _shared(one[::-1], other[::-1])
    one = one[: len(one) - end]
    other = other[: len(other) - end]
    is_swap = len(one) == 2 and one == other[::-1]
    return (is_swap or max(len(one), len(other)) == 1) and not any(
        map(str.isdigit, one + other)
    )


def _shared(one: str, other: str) -> int:
    places = (
        place
        for place, (left, right) in enumerate(zip(one, other, strict=False))
        if left != right
    )
    return next(places, min(len(one), len(other)))


def recurring(task: object, id: object) -> tuple[str, str]:
    """Return the task's name and the instance, of a job or a task."""
    name = given_name(task, "a job or a task; pass one, or its name")
    return name, checked_id(id, name, "schedule_recurring")


def instance_of(
    definitions: Mapping[str, Definition],
    task: object,
    id: object,
    schedule: object,
    data: object,
    priority: object,
    *,
    is_checked: bool = False,
) -> Instance:
    """Return the recurring instance that ``schedule_recurring`` is to write. ``is_checked``: the
    schedule fits the task's policies.
    """
    name, instance = recurring(task, id)
    timing = parse_schedule(schedule) if isinstance(schedule, str) else schedule
    if not isinstance(timing, Schedule):
        raise ConfigurationError(
            f"schedule_recurring({name!r}): {timing!r:.60} is not a schedule; write Every('5m')"
        )
    known = definitions.get(name)
    if known is None:
        near = get_close_matches(name, definitions, n=1)
        cure = "register it here, too: its policies come from the code"
        if near:
            cure = f"did you mean {near[0]!r}?"
        raise UnknownTask(
            f"schedule_recurring({name!r}): the registry has no job or task of this name; {cure}"
        )
    if not is_checked:
        check_schedule(timing, known, f"schedule_recurring({name!r}, id={instance!r})")
    return Instance(
        task=name,
        id=instance,
        schedule=timing,
        data=known.payload.encode(data, name),
        priority=weight(priority, known, f"schedule_recurring({name!r}"),
    )


def page_place(
    name: str | None, after: object, state: object, limit: object
) -> Key | None:
    """Check the arguments of ``list``; return the key after which the page begins."""
    if state is not None and state not in TASK_STATES:
        raise ConfigurationError(
            f"list(state={state!r}): expected {', '.join(TASK_STATES)}"
        )
    if not is_whole(limit, 1):
        raise ConfigurationError(
            f"list(limit={limit!r}): expected a whole number, 1 or more"
        )
    if isinstance(after, TaskInfo):
        return Key(after.task, after.id)
    if not after:
        return None
    if name is None:
        raise ConfigurationError(
            f"list(after={after!r:.60}): ids are a task's; name the task, or pass a TaskInfo"
        )
    return Key(name, str(after))


def weight(priority: object, known: Definition | None, where: str) -> int:
    """Return the given priority, or else the task's."""
    if priority is None:
        return USUAL_PRIORITY if known is None else known.priority
    if not is_priority(priority):
        raise ConfigurationError(f"{where}, priority={priority!r}): {PRIORITIES}")
    return priority


def checked_id(given: object, name: str, call: str = "schedule") -> str:
    if (problem := wrong_id(given)) is not None:
        raise ConfigurationError(f"{call}({name!r}, id={given!r:.60}): {problem}")
    return str(given)


def existing_id(given: object, name: str, call: str) -> str:
    """Return the id of a task that another program may have written, whatever characters it has.
    Raise ConfigurationError for what is no string.
    """
    return given if isinstance(given, str) else checked_id(given, name, call)


def checked_countdown(given: object, name: str) -> None:
    if not is_whole(given, 0, MOST_ARRIVALS):
        raise ConfigurationError(
            f"schedule({name!r}, countdown={given!r}): a whole number, 0 to {MOST_ARRIVALS:,}"
        )


def wrong_id(given: object) -> str | None:
    """Return what is wrong with an id, with the cure; None for a valid one."""
    if not isinstance(given, str):
        return f"an id is a string; write id={str(given)!r:.60}"
    if not given.strip():
        return "an id cannot be blank"
    if len(given) > ID_LIMIT:
        return f"an id has at most {ID_LIMIT} characters, this one has {len(given)}"
    if not given.isprintable():
        return "control characters are not allowed in an id"
    if given == RECURRING or given.startswith(_OF_A_JOB):
        return "this id is reserved for job rows; choose another"
    return None


def payload_for(task: object, name: str, known: Definition | None) -> Payload:
    """Return how the data of this task is written; as any JSON value for a name that this process
    does not know.
    """
    if known is not None:
        return known.payload
    if isinstance(task, OneTimeTask) or (
        isinstance(task, type) and issubclass(task, OneTimeTask)
    ):
        return payload_of(task, name)
    return UNTYPED


def when(at: object, delay: object, name: str, call: str = "schedule") -> When:
    """Return the due time: ``at``, or else ``delay`` from now."""
    where = f"{call}({name!r}"
    if at is None:
        try:
            return When(None, timedelta(0) if delay is None else parse_duration(delay))
        except InvalidSetting as error:
            raise InvalidSetting(f"{where}, delay={delay!r:.60}): {error}") from None
    if delay is not None:
        raise ConfigurationError(
            f"{where}): both at and delay are given; remove one of them"
        )
    if not isinstance(at, datetime):
        raise ConfigurationError(
            f"{where}, at={at!r}): expected a datetime; e.g. datetime(…, tzinfo=UTC)"
        )
    if at.utcoffset() is None:
        raise ConfigurationError(
            f"{where}, at={at.isoformat()}): the instant has no zone; e.g. "
            "at=datetime(…, tzinfo=UTC)"
        )
    if not EARLIEST <= at < FOREVER:
        raise ConfigurationError(
            f"{where}, at={at.isoformat()}): it must lie in {KNOWN_YEARS}"
        )
    return When(at.astimezone(UTC))


def is_soon(due: When, within: timedelta | None) -> bool:
    """Whether a poll may come too late for it. The host's clock is accurate enough for this."""
    if within is None:
        return False
    return due.delay <= within if due.at is None else due.at - host_now() <= within


def wanted(
    item: object,
    name: str,
    payload: Payload,
    ids: Iterator[str],
    usual: When,
    priority: int,
) -> Wanted:
    """Return the row of one of many items."""
    if not isinstance(item, Item):
        data = payload.encode(data_for(name, item), name)
        return Wanted(next(ids), data, usual, priority)
    due = (
        usual
        if item.at is None and item.delay is None
        else when(item.at, item.delay, name)
    )
    instance = next(ids) if item.id is None else checked_id(item.id, name)
    rank = (
        priority
        if item.priority is None
        else weight(item.priority, None, f"schedule_many({name!r}")
    )
    data = payload.encode(data_for(name, item.data), name)
    return Wanted(instance, data, due, rank)


def fresh_ids() -> Iterator[str]:
    """Yield unique ids: the time, so that new ids are neighbours in the index, and 80 random
    bits.
    """
    while True:
        head = f"{time.time_ns() // 1_000_000:012x}"
        tails = os.urandom(10 * 64).hex()
        yield from (
            head + tails[place : place + 20] for place in range(0, len(tails), 20)
        )


def taken(name: str, instance: str | None, state: str | None = None) -> InstanceExists:
    """Return the error for an id that exists; ``instance`` is None if the task has ended since."""
    which = f"with id {instance!r} is" if instance else "with one of these ids was"
    said: dict[str | None, str] = {
        ListedState.RUNNING: "running; choose another id, or if_exists='keep'",
        ListedState.DEAD: "dead; retry it, or put this one in its place with if_exists='replace'",
    }
    scheduled = "already scheduled; choose another id, or if_exists='keep'"
    return InstanceExists(f"task {name!r} {which} {said.get(state, scheduled)}")


def checked_choice(if_exists: object, name: str) -> None:
    if if_exists not in IF_EXISTS:
        raise ConfigurationError(
            f"schedule({name!r}, if_exists={if_exists!r}): write one of {', '.join(IF_EXISTS)}"
        )
