"""What a job or task declares, read once, at registration. A mistake is reported in one line, with
the cure.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NamedTuple,
    TypeAlias,
    TypeGuard,
    get_args,
    get_origin,
    get_type_hints,
)

from slotwise.errors import InvalidJob, InvalidSchedule, located
from slotwise.jobs.finish_by import FinishBy
from slotwise.jobs.functions import AnyDeclaration, OfFunction
from slotwise.jobs.job import (
    DistributedJob,
    JobPolicies,
    OneTimeTask,
    TaskPolicies,
    declared,
)
from slotwise.jobs.near_misses import refuse_near_misses
from slotwise.jobs.payload_reader import payload_of, payload_of_job
from slotwise.jobs.policies import TASK_RETRY, CatchUp, Overlap, Rate, Retry
from slotwise.model.durations import format_duration, parse_duration
from slotwise.model.records import is_whole
from slotwise.model.vocabulary import LossPolicy
from slotwise.payload.payload import UNTYPED, Payload
from slotwise.schedules import Disabled, Once, Schedule, parse_schedule, spread_out

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

NAME_LIMIT = 100
USUAL_PRIORITY = 50
#: The largest value that the column can store.
LARGEST_PRIORITY = 32_767
PRIORITIES = (
    f"a whole number, -{LARGEST_PRIORITY} to {LARGEST_PRIORITY}, for instance 10 to 90"
)

_UNSAID = object()
_SAMPLE = datetime(2026, 1, 1, tzinfo=UTC)


#: Converts a value of the right type, or raises InvalidJob; with the place for the message.
Read: TypeAlias = "Callable[[Any, str], object]"


def duration(value: object, where: str) -> timedelta:
    """Parse a duration above zero. Raise InvalidJob."""
    with located(where, InvalidJob):
        limit = parse_duration(value)
    if limit <= timedelta(0):
        raise InvalidJob(f"{where} is {value!r}; expected more than zero, or None")
    return limit


def _count(value: int, where: str) -> int:
    if value < 1:
        raise InvalidJob(f"{where} is {value}; expected a whole number, 1 or more")
    return value


def _priority(value: int, where: str) -> int:
    if not is_priority(value):
        raise InvalidJob(f"{where} is {value}; expected {PRIORITIES}")
    return value


def _finish_by(value: str | timedelta, where: str) -> FinishBy:
    with located(where, InvalidJob):
        return FinishBy(value)


def _risk(value: float, where: str) -> float:
    if not 0 < value <= 1:
        raise InvalidJob(f"{where} is {value}; expected more than 0, up to 1")
    return value


def _rate(value: str, where: str) -> Rate:
    with located(where, InvalidJob):
        return Rate.read(value)


def _tags(value: Iterable[object], where: str) -> frozenset[object]:
    for tag in value:
        if (
            not isinstance(tag, str)
            or not tag.isprintable()
            or not tag
            or "," in tag
            or tag.split() != [tag]
        ):
            raise InvalidJob(
                f"{where} has {tag!r}; expected tags such as 'gpu', as workers carry them"
            )
    return frozenset(value)


def _former_names(value: Iterable[object], where: str) -> tuple[str, ...]:
    names = {checked_name(name, f"{where}: a former name") for name in value}
    return tuple(sorted(names))


def _one_of(words: str) -> Read:
    """Accept one of the words that this text has in quotes."""
    known = words.split('"')[1::2]

    def read(value: str, where: str) -> str:
        if value not in known:
            raise InvalidJob(f"{where} is {value!r}; expected {words}")
        return value

    return read


def is_priority(value: object) -> TypeGuard[int]:
    """Whether the column can store it."""
    return is_whole(value, -LARGEST_PRIORITY, LARGEST_PRIORITY)


_CATCH_UPS = "CatchUp.latest(), .none(), .first() or .all()"
_OVERLAPS = "Overlap.skip(), .queue() or .allow(2)"
_LOSSES = '"rerun" or "give_up"'
_RECORDS = '"none", "failures" or "all"'
_PLACES = '"process", or None'
_LEVELS = '"DEBUG", "INFO", "WARNING", "ERROR" or "CRITICAL"'
_A_RATE = '"100/m": how many in which time'
_SOME_TAGS = 'a set of tags: {"gpu"}'
_SOME_NAMES = 'former names: ("send-post",)'
_A_NUMBER = "a whole number such as 3"


def _as_it_is(value: object, where: str) -> object:
    return value


class Policy(NamedTuple):
    """Marks a field of ``Definition`` that users may declare: an example, its reader, and the types
    that the keyword accepts.
    """

    example: str
    read: Read = _as_it_is
    types: tuple[type, ...] = ()


Span: TypeAlias = Annotated[timedelta | None, Policy('"5m" or a timedelta', duration)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The policies of a job (``schedule`` is set) or a one-time task (``schedule`` is None), with
    its handler.
    """

    name: str
    handler: Callable[..., object]
    is_async: bool
    schedule: Schedule | None = None
    payload: Payload = UNTYPED
    catch_up: Annotated[CatchUp, Policy(_CATCH_UPS)] = field(default=CatchUp())
    overlap: Annotated[Overlap, Policy(_OVERLAPS)] = field(default=Overlap())
    on_lost: Annotated[str, Policy(_LOSSES, _one_of(_LOSSES))] = LossPolicy.RERUN
    max_lost: Annotated[int, Policy(_A_NUMBER, _count)] = 3
    #: Where it is not declared, tasks have TASK_RETRY.
    retry: Annotated[Retry | None, Policy("Retry.exponential(max_attempts=3)")] = None
    start_within: Span = None
    timeout: Span = None
    warn_after: Span = None
    min_interval: Span = None
    spread: Span = None
    finish_by: Annotated[FinishBy | None, Policy('"06:00" or "2h"', _finish_by)] = None
    finish_risk: Annotated[float, Policy("a share such as 0.5", _risk)] = 0.5
    retention: Span = None
    success_retention: Span = None
    each_shard: Annotated[bool, Policy("True or False")] = False
    priority: Annotated[int, Policy("a whole number such as 50", _priority)] = (
        USUAL_PRIORITY
    )
    isolation: Annotated[str | None, Policy('"process"', _one_of(_PLACES))] = None
    runs_on: Annotated[frozenset[str], Policy(_SOME_TAGS, _tags)] = frozenset()
    log_level: Annotated[str | None, Policy('"WARNING"', _one_of(_LEVELS))] = None
    #: Former names, whose rows it runs as well.
    aliases: Annotated[tuple[str, ...], Policy(_SOME_NAMES, _former_names)] = ()
    #: The present name, of a definition that stands for a former one.
    renamed_to: str | None = None
    record: Annotated[str, Policy(_RECORDS, _one_of(_RECORDS))] = "none"
    result_retention: Span = None
    concurrency: Annotated[int | None, Policy(_A_NUMBER, _count)] = None
    rate_limit: Annotated[Rate | None, Policy(_A_RATE, _rate)] = None
    is_job: bool = field(init=False, compare=False)
    #: Whether something happens when an attempt has run for some time.
    is_timed: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        spans = (self.timeout, self.warn_after)
        object.__setattr__(self, "is_timed", any(span is not None for span in spans))
        object.__setattr__(self, "is_job", self.schedule is not None)
        if self.finish_by is not None:
            wanted = replace(self.finish_by, risk=self.finish_risk)
            object.__setattr__(self, "finish_by", wanted)

    @property
    def is_weighed(self) -> bool:
        """Whether each slot needs a decision, also one on time: it may be too late to start, or
        find no place.
        """
        limits = (self.start_within, self.catch_up.window)
        return (
            any(limit is not None for limit in limits)
            or self.catch_up.mode == "none"
            or self.overlap.detaches
        )

    @property
    def is_planned(self) -> bool:
        """Whether it is a job with its own row, and not a former name of one."""
        return self.is_job and self.renamed_to is None

    def may_run_on(self, tags: AbstractSet[str]) -> bool:
        """Whether a worker that carries these tags may run it."""
        return self.runs_on <= tags

    @property
    def is_limited(self) -> bool:
        """Whether only some of its due rows may start; they are claimed in a statement of their
        own.
        """
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
        """Return a short hash of the schedule and policies, which is stored in the row and
        compared at a redeploy.
        """
        parts = [
            str(self.schedule),
            self.catch_up,
            self.overlap,
            self.on_lost,
            self.max_lost,
        ]
        if self.payload.version > 1:
            parts.append(self.payload.version)
        text = "\n".join(map(repr, parts))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _types(hint: object) -> tuple[type, ...]:
    """Return the types that a keyword accepts, for ``isinstance``."""
    found = [get_origin(one) or one for one in get_args(hint) or (hint,)]
    return tuple(dict.fromkeys(one if isinstance(one, type) else str for one in found))


_HINTS = {**get_type_hints(JobPolicies), **get_type_hints(TaskPolicies)}
#: What users may declare, by name.
POLICIES: dict[str, Policy] = {
    name: hint.__metadata__[0]._replace(types=_types(_HINTS[name]))
    for name, hint in get_type_hints(Definition, include_extras=True).items()
    if get_origin(hint) is Annotated
}


def define(subject: object) -> Definition:
    """Read a job or task (an instance, or a class that takes no arguments). Raises InvalidJob with
    the cure.
    """
    source = instance_of(subject)
    is_function = isinstance(source, OfFunction)
    where = getattr(
        source.execute if is_function else type(source),
        "__name__",
        type(source).__name__,
    )
    name = name_of(source, where)
    refuse_near_misses(source, where)
    values: dict[str, Any] = {
        word: policy_of(source, where, word) for word in POLICIES
    }
    values = {word: value for word, value in values.items() if value is not _UNSAID}
    if isinstance(source, OneTimeTask):
        values["payload"] = payload_of(source, where)
        if values.get("on_lost") != LossPolicy.GIVE_UP:
            values.setdefault("retry", TASK_RETRY)
    else:
        schedule = declared_schedule(source, where)
        values["payload"] = payload_of_job(source, schedule, where)
        values["schedule"] = spread_by(schedule, where, name, values.get("spread"))
    handler = handler_of(source, where)
    is_async = inspect.iscoroutinefunction(handler)
    definition = Definition(name=name, handler=handler, is_async=is_async, **values)
    _refuse_contradictions(definition, where)
    return definition


def _refuse_contradictions(definition: Definition, where: str) -> None:
    if definition.gives_up and definition.retry is not None:
        raise InvalidJob(
            f'{where}: retry contradicts on_lost="give_up" (at most one start); drop one of them'
        )
    timeout = definition.timeout
    warn_after = definition.warn_after
    if timeout is not None and warn_after is not None and warn_after >= timeout:
        raise InvalidJob(
            f"{where}: warn_after={format_duration(warn_after)} never passes: the attempt is "
            f"stopped at its timeout of {format_duration(timeout)}; make it shorter"
        )
    if definition.min_interval is not None and definition.overlap.detaches:
        raise InvalidJob(
            f"{where}: min_interval contradicts Overlap.{definition.overlap.mode}; drop one of them"
        )
    if definition.schedule is not None:
        check_schedule(definition.schedule, definition, where)


def rescheduled(definition: Definition, text: str, where: str) -> Definition:
    """Return the job with the schedule of the settings. Raise InvalidSchedule or InvalidJob."""
    if not definition.is_job:
        raise InvalidJob(
            f"{where}: {definition.name!r} is a one-time task, it has no schedule; remove it there"
        )
    schedule = spread_by(
        parsed(text, where), where, definition.name, definition.spread
    )
    check_schedule(schedule, definition, where)
    return replace(definition, schedule=schedule)


def check_schedule(schedule: Schedule, definition: Definition, where: str) -> None:
    """Raise InvalidJob if the policies do not fit: nothing can overlap, or catching up would never
    end.
    """
    if schedule.from_end and definition.overlap.detaches:
        raise InvalidJob(
            f"{where}: {schedule} starts after the end of a run: nothing overlaps; drop overlap"
        )
    if definition.catch_up.mode != "all":
        return
    if schedule.from_end or isinstance(schedule, Once):
        raise InvalidJob(
            f"{where}: {schedule} misses one slot at most: CatchUp.all() means "
            "nothing; remove catch_up"
        )
    shortest = shortest_interval(schedule, definition.name)
    for word, least in (
        ("CatchUp.all(pace", definition.catch_up.pace),
        ("(min_interval", definition.min_interval),
    ):
        if least is not None and shortest is not None and least >= shortest:
            raise InvalidJob(
                f"{where}: {word}={format_duration(least)}) never catches up with "
                f"a schedule that comes every {format_duration(shortest)}; make it shorter"
            )


def shortest_interval(
    schedule: Schedule, name: str, count: int = 100
) -> timedelta | None:
    """Return the shortest of the next ``count`` intervals; None without one, or if its calendar is
    in the database.
    """
    if schedule.from_end or None in schedule.calendars.values():
        return None
    slots = list(
        islice(
            schedule.bind(name).slots(_SAMPLE, _SAMPLE + timedelta(days=3660)),
            count + 1,
        )
    )
    return min((after - before for before, after in pairwise(slots)), default=None)


def instance_of(subject: object) -> AnyDeclaration:
    if isinstance(subject, DistributedJob | OneTimeTask):
        return subject
    if not isinstance(subject, type) or not issubclass(
        subject, DistributedJob | OneTimeTask
    ):
        raise InvalidJob(
            "a job cannot be None; pass an instance such as NightlyReport()"
            if subject is None
            else (
                f"{subject!r} is not a job; expected a DistributedJob, a OneTimeTask, "
                "or a function under @job or @task"
            )
        )
    try:
        return subject()
    except TypeError as error:
        raise InvalidJob(
            f"{subject.__name__} is a class and cannot be made without arguments "
            f"({error}); pass an instance"
        ) from error


def name_of(source: object, where: str) -> str:
    return checked_name(declared(source, "name"), f"{where}.name")


def checked_name(name: object, where: str) -> str:
    """Return a name of a job or task. Raise InvalidJob."""
    if not isinstance(name, str):
        raise InvalidJob(
            f"{where} is {name!r}; expected a string that is unique in the cluster"
        )
    if not name.strip() or name != name.strip():
        raise InvalidJob(
            f"{where} is {name!r}; a name cannot be blank, nor begin or end with a blank"
        )
    if len(name) > NAME_LIMIT:
        raise InvalidJob(
            f"{where} has {len(name)} characters; at most {NAME_LIMIT} are "
            f"allowed: {name[:40]!r}…"
        )
    if not name.isprintable():
        raise InvalidJob(f"{where} is {name!r}; control characters are not allowed")
    return name


def spread_by(
    schedule: Schedule, where: str, name: str, spread: timedelta | None
) -> Schedule:
    if spread is None or isinstance(schedule, Disabled):
        return schedule
    with located(f"{where}.spread", InvalidJob):
        return spread_out(schedule, name, spread)


def parsed(text: str, where: str) -> Schedule:
    with located(where, InvalidSchedule):
        return parse_schedule(text)


def declared_schedule(source: object, where: str) -> Schedule:
    schedule = declared(source, "schedule")
    if isinstance(schedule, str):
        schedule = parsed(schedule, f"{where}.schedule")
    if inspect.isclass(schedule) or not isinstance(schedule, Schedule):
        kind = "nothing" if schedule is None else repr(schedule)
        raise InvalidJob(
            f"{where}.schedule is {kind}; expected a schedule such as Cron('0 2 * "
            "* *'), Daily('02:00') or Every('5m')"
        )
    return schedule


def handler_of(source: AnyDeclaration, where: str) -> Callable[..., object]:
    handler: Callable[..., object] = source.execute
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise InvalidJob(
            f"{where}.execute contains yield, so that calling it would run "
            "nothing; remove the yield"
        )
    try:
        inspect.signature(handler, follow_wrapped=False).bind(None)
    except TypeError as error:
        raise InvalidJob(
            f"{where}.execute must take the context, and nothing else: {error}"
        ) from None
    except ValueError:  # written in C: it has no signature
        pass
    return handler


_SETS = {"runs_on": "a set of tags", "aliases": "a set of former names"}


def policy_of(source: object, where: str, word: str) -> Any:
    """Return a policy as declared; _UNSAID if it is not. Raise InvalidJob with the cure."""
    policy = POLICIES[word]
    value = declared(source, word, _UNSAID)
    if value is _UNSAID:
        return value
    if word in _SETS and isinstance(value, str):
        raise InvalidJob(
            f"{where}.{word} is {value!r}; expected {_SETS[word]}: write {{{value!r}}}"
        )
    is_bool = isinstance(value, bool) and bool not in policy.types
    if is_bool or not isinstance(value, policy.types):
        raise InvalidJob(f"{where}.{word} is {_of_wrong_type(source, policy, value)}")
    return None if value is None else policy.read(value, f"{where}.{word}")


def _of_wrong_type(source: object, policy: Policy, value: object) -> str:
    """Return what is given, what is expected, and what to write."""
    wanted = " or ".join(
        "None" if kind is type(None) else kind.__name__ for kind in policy.types
    )
    is_plain = isinstance(
        value, str | int | float | list | tuple | dict | set | timedelta | None
    )
    shown = f"{value!r:.80}" if is_plain else f"a {type(value).__name__}"
    cure = policy.example
    # A keyword of the decorator is not the user's attribute.
    if not isinstance(source, OfFunction):
        cure += ", or rename your own attribute"
    return f"{shown}, expected {wanted}; write {cure}"
