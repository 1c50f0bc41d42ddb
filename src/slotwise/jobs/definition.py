"""What a job or task declares, read once, at registration. A mistake is reported in one line, with
the cure.
"""

from __future__ import annotations

import difflib
import hashlib
import inspect
from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NamedTuple,
    Never,
    Protocol,
    TypeAlias,
    TypeGuard,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from slotwise.errors import InvalidJob, InvalidPayload, InvalidSchedule, located
from slotwise.jobs.context import TaskContext
from slotwise.jobs.job import (
    Declaration,
    DistributedJob,
    FunctionJob,
    FunctionTask,
    OneTimeTask,
    declared,
)
from slotwise.jobs.policies import TASK_RETRY, CatchUp, Overlap, Rate, Retry
from slotwise.model.durations import format_duration, parse_duration
from slotwise.model.records import is_whole
from slotwise.model.vocabulary import LossPolicy
from slotwise.payload.codecs import CODECS, JSON, Codec
from slotwise.payload.converters import called, shape_of
from slotwise.payload.payload import UNTYPED, Payload, Upgrade
from slotwise.schedules import Disabled, Once, Schedule, parse_schedule, spread_out

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

T = TypeVar("T")
AnyDeclaration: TypeAlias = DistributedJob | OneTimeTask[Never]

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


class Policy(NamedTuple):
    """What may be declared besides name, schedule and execute: types, an example, and for what."""

    types: tuple[type, ...]
    example: str
    read: Read
    of: Literal["jobs", "tasks", "both"]


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


_NONE = type(None)
_SPAN = (timedelta, str, _NONE)
_INTEGER = (int, _NONE)
_TEXT = (str, _NONE)
_RETRY = (Retry, _NONE)
_CATCH_UPS = "CatchUp.latest(), .none(), .first() or .all()"
_OVERLAPS = "Overlap.skip(), .queue() or .allow(2)"
_LOSSES = '"rerun" or "give_up"'
_RECORDS = '"none", "failures" or "all"'
_PLACES = '"process", or None'
_A_SPAN = '"5m" or a timedelta'
_A_RATE = '"100/m": how many in which time'
_SOME_TAGS = 'a set of tags: {"gpu"}'
_COLLECTIONS = (tuple, list, set, frozenset)
_A_NUMBER = "a whole number such as 3"


def _policy(
    types: tuple[type, ...],
    example: str,
    read: Read = lambda value, where: value,
    of: Literal["jobs", "tasks", "both"] = "both",
) -> dict[str, Policy]:
    """Return the metadata of a field of ``Definition`` that users may declare."""
    return {"policy": Policy(types, example, read, of)}


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
    catch_up: CatchUp = field(
        default=CatchUp.latest(), metadata=_policy((CatchUp,), _CATCH_UPS, of="jobs")
    )
    overlap: Overlap = field(
        default=Overlap.skip(), metadata=_policy((Overlap,), _OVERLAPS, of="jobs")
    )
    on_lost: str = field(
        default=LossPolicy.RERUN, metadata=_policy((str,), _LOSSES, _one_of(_LOSSES))
    )
    max_lost: int = field(default=3, metadata=_policy((int,), _A_NUMBER, _count))
    #: Where it is not declared, tasks have TASK_RETRY.
    retry: Retry | None = field(
        default=None, metadata=_policy(_RETRY, "Retry.exponential(max_attempts=3)")
    )
    start_within: timedelta | None = field(
        default=None, metadata=_policy(_SPAN, _A_SPAN, duration, "jobs")
    )
    timeout: timedelta | None = field(
        default=None, metadata=_policy(_SPAN, _A_SPAN, duration)
    )
    min_interval: timedelta | None = field(
        default=None, metadata=_policy(_SPAN, _A_SPAN, duration, "jobs")
    )
    spread: timedelta | None = field(
        default=None, metadata=_policy(_SPAN, _A_SPAN, duration, "jobs")
    )
    priority: int = field(
        default=USUAL_PRIORITY,
        metadata=_policy((int,), "a whole number such as 50", _priority),
    )
    isolation: str | None = field(
        default=None, metadata=_policy(_TEXT, '"process"', _one_of(_PLACES))
    )
    runs_on: frozenset[str] = field(
        default=frozenset(), metadata=_policy(_COLLECTIONS, _SOME_TAGS, _tags)
    )
    record: str = field(
        default="none", metadata=_policy((str,), _RECORDS, _one_of(_RECORDS), "tasks")
    )
    result_retention: timedelta | None = field(
        default=None, metadata=_policy(_SPAN, _A_SPAN, duration, "tasks")
    )
    concurrency: int | None = field(
        default=None, metadata=_policy(_INTEGER, _A_NUMBER, _count, "tasks")
    )
    rate_limit: Rate | None = field(
        default=None, metadata=_policy(_TEXT, _A_RATE, _rate, "tasks")
    )
    is_job: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_job", self.schedule is not None)

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


#: What users may declare, by name.
POLICIES: dict[str, Policy] = {
    one.name: one.metadata["policy"]
    for one in fields(Definition)
    if "policy" in one.metadata
}


def define(subject: object) -> Definition:
    """Read a job or task (an instance, or a class that takes no arguments); a definition is
    returned as it is. Raises InvalidJob with the cure.
    """
    if isinstance(subject, Definition):
        return subject
    source = instance_of(subject)
    is_function = isinstance(source, FunctionJob | FunctionTask)
    where = getattr(
        source.execute if is_function else type(source), "__name__", type(source).__name__
    )
    is_job = isinstance(source, DistributedJob)
    name = name_of(source, where)
    refuse_near_misses(source, where)
    policies = {
        word: value
        for word in POLICIES
        if (value := policy_of(source, where, word)) is not _UNSAID
    }
    if not is_job and policies.get("on_lost") != LossPolicy.GIVE_UP:
        policies.setdefault("retry", TASK_RETRY)
    handler = handler_of(source, where)
    definition = Definition(
        name=name,
        handler=handler,
        is_async=inspect.iscoroutinefunction(handler),
        schedule=spread_by(
            declared_schedule(source, where), where, name, policies.get("spread")
        )
        if is_job
        else None,
        payload=payload_of(source, where)
        if isinstance(source, OneTimeTask)
        else _of_job(source, where),
        **policies,
    )
    if definition.gives_up and definition.retry is not None:
        raise InvalidJob(
            f'{where}: retry contradicts on_lost="give_up" (at most one start); drop one of them'
        )
    if definition.min_interval is not None and definition.overlap.detaches:
        raise InvalidJob(
            f"{where}: min_interval contradicts Overlap.{definition.overlap.mode}; drop one of them"
        )
    if definition.schedule is not None:
        check_schedule(definition.schedule, definition, where)
    return definition


def rescheduled(definition: Definition, text: str, where: str) -> Definition:
    """Return the job with the schedule of the settings. Raise InvalidSchedule or InvalidJob."""
    if not definition.is_job:
        raise InvalidJob(
            f"{where}: {definition.name!r} is a one-time task, it has no schedule; remove it there"
        )
    schedule = spread_by(parsed(text, where), where, definition.name, definition.spread)
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
                "a schedule that comes "
                f"every {format_duration(shortest)}; make it shorter"
            )


def shortest_interval(schedule: Schedule, name: str, count: int = 100) -> timedelta | None:
    """Return the shortest of the next ``count`` intervals; None without one, or if its calendar is
    in the database.
    """
    if schedule.from_end or None in schedule.calendars.values():
        return None
    slots = list(
        islice(
            schedule.bind(name).slots(_SAMPLE, _SAMPLE + timedelta(days=3660)), count + 1
        )
    )
    return min((after - before for before, after in pairwise(slots)), default=None)


_OF_JOBS = {"schedule", *(word for word, policy in POLICIES.items() if policy.of == "jobs")}
_OF_TASKS = {word for word, policy in POLICIES.items() if policy.of == "tasks"}
_NOT_THE_USERS = (object, ABC, Generic, Protocol, Declaration, DistributedJob, OneTimeTask)
#: Names that other libraries have for policies of ours.
_ALIASES = {
    "on_dead": "on_lost",
    "misfire": "catch_up",
    "coalesce": "catch_up",
    "misfire_grace_time": "catch_up",
    "max_retries": "retry",
    "max_instances": "overlap",
    "max_losses": "max_lost",
    "max_rate": "rate_limit",
    "max_concurrency": "concurrency",
    "prio": "priority",
    "isolated": "isolation",
}
#: The same, but users have these names for objects of their own, too: rejected if the value is a
#: setting's.
_IF_A_SETTING = {
    "queue": "runs_on",
    "queues": "runs_on",
    "tag": "runs_on",
    "tags": "runs_on",
    "rate": "rate_limit",
    "retries": "retry",
    "max_attempts": "retry",
}
#: Values that are policies under any name.
_BY_TYPE = {CatchUp: "catch_up", Overlap: "overlap", Retry: "retry"}


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
    name = declared(source, "name")
    if not isinstance(name, str):
        raise InvalidJob(
            f"{where}.name is {name!r}; expected a string that is unique in the cluster"
        )
    if not name.strip() or name != name.strip():
        raise InvalidJob(
            f"{where}.name is {name!r}; a name cannot be blank, nor begin or end with a blank"
        )
    if len(name) > NAME_LIMIT:
        raise InvalidJob(
            f"{where}.name has {len(name)} characters; at most {NAME_LIMIT} are "
            f"allowed: {name[:40]!r}…"
        )
    if not name.isprintable():
        raise InvalidJob(f"{where}.name is {name!r}; control characters are not allowed")
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


def policy_of(source: object, where: str, word: str) -> Any:
    """Return a policy as declared; _UNSAID if it is not. Raise InvalidJob with the cure."""
    policy = POLICIES[word]
    value = declared(source, word, _UNSAID)
    if value is _UNSAID:
        return value
    if word == "runs_on" and isinstance(value, str):
        raise InvalidJob(
            f"{where}.runs_on is {value!r}; expected a set of tags: write {{{value!r}}}"
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
    if not isinstance(source, FunctionJob | FunctionTask):
        cure += ", or rename your own attribute"
    return f"{shown}, expected {wanted}; write {cure}"


def refuse_near_misses(source: object, where: str) -> None:
    """Raise InvalidJob for an attribute such as `catchup`, which would change nothing, with the
    name that was meant.
    """
    classes = [klass for klass in type(source).__mro__ if klass not in _NOT_THE_USERS]
    own = {
        name
        for owner in (source, *classes)
        for name in vars(owner)
        if not name.startswith("_")
    }
    is_task = isinstance(source, OneTimeTask)
    _refuse_other_kind(own, where, is_task=is_task)
    policies = (*POLICIES, *(PAYLOAD_WORDS if is_task else (_VERSION,)))
    words = {"schedule", *policies} - (_OF_JOBS if is_task else _OF_TASKS)
    known = {"name", "execute", *words}
    # A keyword of the decorator is not the user's attribute.
    is_ours = isinstance(source, FunctionJob | FunctionTask)
    for name in sorted(own - known):
        value = inspect.getattr_static(source, name)
        if name in _IF_A_SETTING and not is_ours and not _is_a_setting(value):
            continue
        meant = _BY_TYPE.get(type(value), "")
        if not meant or meant in own or meant not in words:
            meant = (
                _ALIASES.get(name) or _IF_A_SETTING.get(name) or _nearest(name, policies)
            )
        if meant == "rate_limit" and not is_task:
            meant = "min_interval"
        if meant:
            otherwise = "" if is_ours else " otherwise rename your own attribute"
            raise InvalidJob(f"{where}.{name}: did you mean {meant}?{otherwise}")
        if is_ours:
            raise InvalidJob(
                f"{where}: unknown keyword {name}; known are "
                f"{', '.join(sorted(known - {'execute'}))}"
            )


def _refuse_other_kind(own: set[str], where: str, *, is_task: bool) -> None:
    """Raise InvalidJob for a policy of tasks on a job, or of jobs on a task."""
    others = own & (_OF_JOBS if is_task else _OF_TASKS)
    if not others:
        return
    if is_task:
        cure = "a one-time task has no slots; make it a DistributedJob, or remove it"
    else:
        cure = (
            "this is for one-time tasks; remove it: the ledger has every slot of a job, "
            "and overlap or min_interval limit its starts"
        )
    raise InvalidJob(f"{where}.{min(others)}: {cure}")


def _is_a_setting(value: object) -> bool:
    """Whether a value is of a kind that settings have: a string, a number, strings, a Retry."""
    if isinstance(value, _COLLECTIONS):
        return bool(value) and all(isinstance(one, str) for one in value)
    return isinstance(value, str | int | float | Retry) and not isinstance(value, bool)


def _nearest(name: str, words: Iterable[str]) -> str:
    squeezed = {word.replace("_", ""): word for word in words}
    close = difflib.get_close_matches(
        name.replace("_", "").lower(), squeezed, n=1, cutoff=0.82
    )
    return squeezed[close[0]] if close else ""


#: Attributes of a task that describe its data.
_VERSION = "payload_version"
PAYLOAD_WORDS = ("payload", _VERSION, "upgrades", "codec")


def payload_of(
    source: OneTimeTask[Never] | type[OneTimeTask[Never]], where: str
) -> Payload:
    """Return the payload that a task declares. Raise InvalidJob or InvalidPayload with the
    cure.
    """
    kind = declared(source, "payload")
    if kind is None:
        kind = _of_class(source if isinstance(source, type) else type(source), where)
    if kind is None or isinstance(kind, TypeVar):
        kind = _of_handler(source.execute, where)
    if kind is None or isinstance(kind, TypeVar):
        kind = Any
    version, upgrades = _versions(source, where)
    try:
        with located(where, InvalidPayload):
            shape = shape_of(kind)
    except RecursionError:
        raise InvalidPayload(
            f"{where}: {called(kind)} contains itself, which only models of "
            "pydantic and msgspec may; take one of "
            "these, or dict[str, Any]"
        ) from None
    return Payload(
        kind=kind,
        shape=shape,
        codec=_codec(source, where),
        version=version,
        upgrades=upgrades,
    )


def _of_job(source: DistributedJob, where: str) -> Payload:
    """Return the payload of a job: its data is untyped, and its version only tells releases
    apart.
    """
    version = _version(source, where)
    return (
        UNTYPED
        if version == 1
        else Payload(version=version, upgrades=dict.fromkeys(range(1, version), _as_it_is))
    )


def _as_it_is(data: object) -> object:
    return data


def _version(source: object, where: str) -> int:
    version: int = declared(source, _VERSION, 1)
    if not is_whole(version, 1):
        raise InvalidJob(
            f"{where}.{_VERSION} is {version!r}; expected a whole number, 1 or more"
        )
    return version


def _versions(source: object, where: str) -> tuple[int, Mapping[int, Upgrade]]:
    version = _version(source, where)
    upgrades = declared(source, "upgrades", {})
    if not isinstance(upgrades, Mapping) or not all(
        callable(upgrade) for upgrade in upgrades.values()
    ):
        raise InvalidJob(
            f"{where}.upgrades is {upgrades!r:.80}; expected {{1: function from 1 to 2, …}}"
        )
    if set(upgrades) != set(range(1, version)):
        wanted = ", ".join(map(str, range(1, version))) or "none"
        raise InvalidJob(
            f"{where}.upgrades has {sorted(upgrades)}; for payload_version {version} give: {wanted}"
        )
    return version, upgrades


def _codec(source: object, where: str) -> Codec:
    name = declared(source, "codec", JSON.name)
    found = CODECS.get(name) if isinstance(name, str) else None
    if found is None:
        known = ", ".join(sorted(CODECS))
        raise InvalidJob(
            f"{where}.codec is {name!r}; registered are {known}; call register_codec first"
        )
    return found


def _of_class(kind: type, where: str) -> object:
    """Return the type argument of ``OneTimeTask[…]``, through any number of bases; None without
    one.
    """
    for base in kind.__dict__.get("__orig_bases__", ()):
        origin = get_origin(base)
        arguments = get_args(base)
        if origin is OneTimeTask:
            return _resolved(arguments[0], kind, where)
        if isinstance(origin, type) and issubclass(origin, OneTimeTask):
            given = dict(zip(origin.__parameters__, arguments, strict=True))  # type: ignore[attr-defined]
            return _resolved(_filled(_of_class(origin, where), given), kind, where)
    found = [
        _of_class(base, where) for base in kind.__bases__ if issubclass(base, OneTimeTask)
    ]
    return next((one for one in found if one is not None), None)


def _filled(found: Any, given: Mapping[object, object]) -> object:
    if isinstance(found, TypeVar):
        return given.get(found, found)
    names = getattr(found, "__parameters__", ())
    return found[tuple(given.get(name, name) for name in names)] if names else found


def _resolved(argument: object, kind: type, where: str) -> object:
    """Return the type argument; names in quotes are looked up in the module of the class."""
    holder = type(
        "", (), {"__annotations__": {"data": argument}, "__module__": kind.__module__}
    )
    try:
        return get_type_hints(holder, include_extras=True)["data"]
    except NameError as error:
        raise InvalidJob(f"{where}: {error}; name the type itself: payload = …") from None


def _of_handler(handler: Callable[..., object], where: str) -> object:
    """Return the type argument of the handler's ``TaskContext[…]``; None without one."""
    try:
        hints = get_type_hints(handler)
    except Exception as error:  # an annotation may be anything, and is only read for this
        if "TaskContext[" in str(getattr(handler, "__annotations__", "")):
            raise InvalidJob(
                f"{where}: {error}; name the type of the data: payload=…"
            ) from None
        return None
    hints.pop("return", None)
    context = next(iter(hints.values()), None)
    return (
        next(iter(get_args(context)), None) if get_origin(context) is TaskContext else None
    )
