"""Jobs with a lock key: entries of ``CRON_JOBS``, bound to handlers, and functions under
``@distributed_scheduled``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial, update_wrapper
from importlib.resources import files
from typing import Final, Protocol, Self, TypeAlias, Unpack, runtime_checkable

from slotwise import (
    ConfigurationError,
    Cron,
    DistributedJob,
    InvalidCronJobs,
    InvalidJob,
    InvalidSchedule,
    JobContext,
)
from slotwise.contrib.advisory.lock_keys import LARGEST_KEY, KeyRange, LockKeys
from slotwise.spi import JobPolicies

VARIABLE: Final = "CRON_JOBS"
ZONE_VARIABLE: Final = "CRON_TZ"

_FIELDS: Final = ("schedule", "lockKey")
_SCHEMA: Final = "cron_jobs.schema.json"
_EXAMPLE: Final = '{"tokenCleanup": {"schedule": "0 */5 * * * *", "lockKey": 5101}}'
_LONGEST_NAME: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class CronJob:
    """One entry of ``CRON_JOBS``."""

    #: ``<service>.<job>``; without a service as it was written.
    name: str
    #: The part of the name that a handler has.
    job: str
    schedule: Cron
    lock_key: int


def cron_jobs_schema() -> dict[str, object]:
    """Return the JSON Schema of ``CRON_JOBS``."""
    found: dict[str, object] = json.loads(
        (files(__package__) / _SCHEMA).read_text(encoding="utf-8")
    )
    return found


def read_cron_jobs(
    environ: Mapping[str, str],
    *,
    handlers: Collection[str] | None = None,
    service: str | None = None,
    lock_keys: LockKeys | None = None,
    tz: str | None = None,
    beside: Iterable[tuple[str, int]] = (),
) -> tuple[CronJob, ...]:
    """Read ``CRON_JOBS``, and ``CRON_TZ`` if there is no ``tz``, from an environment; see
    ``parse_cron_jobs``.
    """
    if not environ.get(VARIABLE, "").strip():
        lack = "empty" if VARIABLE in environ else "not set"
        raise InvalidCronJobs(
            [f"{VARIABLE} is {lack}; write {_EXAMPLE}, or {{}} for no jobs"]
        )
    zone = tz or environ.get(ZONE_VARIABLE) or None
    return parse_cron_jobs(
        environ[VARIABLE],
        handlers=handlers,
        service=service,
        lock_keys=lock_keys,
        tz=zone,
        beside=beside,
    )


def parse_cron_jobs(
    text: str,
    *,
    handlers: Collection[str] | None = None,
    service: str | None = None,
    lock_keys: LockKeys | None = None,
    tz: str | None = None,
    beside: Iterable[tuple[str, int]] = (),
) -> tuple[CronJob, ...]:
    """Return the jobs in their order. Raise InvalidCronJobs, which lists every problem with its
    job and field.

    ``handlers`` are the names of the jobs that the code has; without them, names are not checked.
    Keys are compared with the range of ``service`` if ``lock_keys`` are given, too. ``tz`` is the
    zone of all schedules. Without it, a schedule that fixes an hour, day, month or weekday is a
    problem: Node and Spring use the zone of their process, and slotwise uses UTC. Days of the
    month and of the week must both match, as in Node and Spring. ``beside`` are names and keys of
    further jobs of the service, which the code declares: their keys are checked, too.
    """
    problems: list[str] = []
    entries = _entries(text, problems)
    is_zone = tz is None or _is_zone(tz, problems)
    reader = _Reader(
        handlers=handlers,
        service=service,
        keys=_own_range(service, lock_keys, problems),
        tz=tz if is_zone else "UTC",
        problems=problems,
    )
    for name, own in beside:
        reader.check_key(name, own)
    found = [reader.job(name, entry) for name, entry in entries]
    if problems:
        raise InvalidCronJobs(problems)
    return tuple(job for job in found if job is not None)


@dataclass(frozen=True, slots=True)
class _Object:
    """A JSON object as it was written: a dict would drop what is there twice."""

    pairs: list[tuple[str, object]]

    def fields(self) -> dict[str, object]:
        return dict(self.pairs)

    def repeated(self) -> list[str]:
        names = [name for name, _ in self.pairs]
        return [name for name in dict.fromkeys(names) if names.count(name) > 1]


def _entries(text: str, problems: list[str]) -> list[tuple[str, object]]:
    try:
        read = json.loads(text, object_pairs_hook=_Object)
    except (ValueError, RecursionError) as error:
        at = getattr(error, "pos", 0)
        line = text.count("\n", 0, at) + 1
        column = at - text.rfind("\n", 0, at)
        problems.append(
            f"not JSON at line {line}, column {column}: {text[at:]!r:.40}; write {_EXAMPLE}"
        )
        return []
    if not isinstance(read, _Object):
        problems.append(f"{_shown(read)} is not an object; write {_EXAMPLE}")
        return []
    problems += [
        f"{name}: the job is there twice; remove one" for name in read.repeated()
    ]
    return read.pairs


def _is_zone(tz: str, problems: list[str]) -> bool:
    try:
        Cron("* * * * *", tz)
    except InvalidSchedule as error:
        problems.append(f"{ZONE_VARIABLE}: {error}")
        return False
    return True


def _own_range(
    service: str | None, lock_keys: LockKeys | None, problems: list[str]
) -> KeyRange | None:
    if service is None or lock_keys is None:
        return None
    try:
        return lock_keys.of(service)
    except ConfigurationError as error:
        problems.append(str(error))
        return None


@dataclass(slots=True, kw_only=True)
class _Reader:
    """Reads entries; adds what is wrong with them to the problems."""

    handlers: Collection[str] | None
    service: str | None
    #: Those of the service.
    keys: KeyRange | None
    tz: str | None
    problems: list[str]
    #: The jobs by their keys.
    used: dict[int, str] = field(default_factory=dict)

    def job(self, name: str, entry: object) -> CronJob | None:
        """Return the job of an entry; None if something is wrong with it."""
        before = len(self.problems)
        job = self._job_part(name)
        if not isinstance(entry, _Object):
            self.problems.append(
                f"{name}: {_shown(entry)} is not an object; write schedule and lockKey"
            )
            return None
        self.problems += _field_problems(name, entry)
        fields = entry.fields()
        schedule = self._schedule(name, fields)
        key = self._lock_key(name, fields)
        if len(self.problems) > before or schedule is None or key is None:
            return None
        is_full = self.service is None or name.startswith(f"{self.service}.")
        full = name if is_full else f"{self.service}.{name}"
        return CronJob(name=full, job=job, schedule=schedule, lock_key=key)

    def _job_part(self, name: str) -> str:
        if not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
            self.problems.append(
                f"{name[:40]!r}: a job's name has 1 to {_LONGEST_NAME} printable characters; "
                "change it"
            )
        prefix, _, job = name.rpartition(".")
        if self.service is not None and prefix and prefix != self.service:
            self.problems.append(
                f"{name}: the job is of {prefix}, and this service is {self.service}; "
                "remove it, or correct its name"
            )
        if self.handlers is not None and not {job, name} & set(self.handlers):
            near = get_close_matches(job, self.handlers, n=1)
            hint = (
                f"did you mean {near[0]}?" if near else "write one, or remove the job"
            )
            self.problems.append(f"{name}: no handler has this name; {hint}")
        return job

    def _schedule(self, name: str, fields: Mapping[str, object]) -> Cron | None:
        text = fields.get("schedule")
        if not isinstance(text, str):
            lack = _lack(fields, "schedule", "a string")
            self.problems.append(
                f'{name}.schedule: {lack}; write e.g. "0 */5 * * * *"'
            )
            return None
        try:
            schedule = Cron(text, self.tz or "UTC", day_rule="and")
        except InvalidSchedule as error:
            self.problems.append(f"{name}.schedule: {error}")
            return None
        if self.tz is None and (fixed := fixed_fields(text)):
            self.problems.append(
                f"{name}.schedule: {text!r} fixes its {fixed[0]}, and no zone is named; set "
                f"{ZONE_VARIABLE}, e.g. to the zone in which the Node or Spring processes run"
            )
        return schedule

    def _lock_key(self, name: str, fields: Mapping[str, object]) -> int | None:
        key = fields.get("lockKey")
        if not isinstance(key, int) or isinstance(key, bool):
            lack = _lack(fields, "lockKey", "a whole number")
            self.problems.append(
                f"{name}.lockKey: {lack}; write e.g. 5101, without quotes"
            )
            return None
        if not 1 <= key <= LARGEST_KEY:
            self.problems.append(
                f"{name}.lockKey: {key} is not from 1 to {LARGEST_KEY}; take a key of "
                "your service's range"
            )
            return None
        self.check_key(name, key)
        return key

    def check_key(self, name: str, key: int) -> None:
        """Add a problem for a key that another job has, or that another service owns."""
        if self.used.get(key, name) != name:
            self.problems.append(
                f"{name}.lockKey: {key} is the key of {self.used[key]}, too; take another key"
            )
        self.used.setdefault(key, name)
        if self.keys is not None and key not in self.keys:
            self.problems.append(
                f"{name}.lockKey: {key} is out of the range of {self.keys.service}, "
                f"{self.keys}; take a key of its range"
            )


def _field_problems(name: str, entry: _Object) -> Iterator[str]:
    for repeated in entry.repeated():
        yield f"{name}.{repeated}: the field is there twice; remove one"
    known = {one.lower(): one for one in _FIELDS}
    for unknown in (one for one, _ in entry.pairs if one not in _FIELDS):
        near = get_close_matches(unknown.replace("_", "").lower(), known, n=1)
        hint = f"did you mean {known[near[0]]}?" if near else "remove it"
        yield f"{name}.{unknown}: unknown field; {hint}"


def _lack(fields: Mapping[str, object], name: str, kind: str) -> str:
    return f"{_shown(fields[name])} is not {kind}" if name in fields else "missing"


def fixed_fields(expression: str) -> list[str]:
    """Return which of hour, day, month and weekday an expression fixes; its slots then depend on
    the zone.
    """
    fields = Cron.MACROS.get(expression.strip().lower(), expression).split()
    names = ("hour", "day", "month", "weekday")
    return [
        name
        for name, field in zip(names, fields[-4:], strict=True)
        if field not in ("*", "?", "*/1")
    ]


def _shown(value: object) -> str:
    return f"{json.dumps(value.fields() if isinstance(value, _Object) else value, default=str):.40}"


#: What runs at each tick.
Handler: TypeAlias = Callable[[JobContext], object]

_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class _Keyed(partial[object]):
    """The function of a job with a key. A worker does not start it without a gate that holds
    the key.
    """

    def __new__(cls, function: Handler, name: str, key: int) -> Self:
        made = super().__new__(cls, function)
        update_wrapper(made, function)
        made.name = name
        made.key = key
        return made

    name: str
    key: int

    def verify_hooks(self, hooks: Iterable[object]) -> None:
        """Raise InvalidJob if no hook is a gate with this job and key."""
        if not any(
            hook.holds(self.name, self.key)
            for hook in hooks
            if isinstance(hook, HoldsKeys)
        ):
            raise InvalidJob(
                f"job {self.name!r} has the lock key {self.key}, and no hook holds "
                "it while the job runs; "
                "write before_start=[AdvisoryGate(url, jobs)], with this job among the jobs"
            )


@runtime_checkable
class HoldsKeys(Protocol):
    """A ``before_start`` hook that holds lock keys."""

    def holds(self, name: str, key: int) -> bool:
        """Return whether the hook holds this key while the job runs."""


class KeyedJob(DistributedJob):
    """A job that runs under a lock key, which ``AdvisoryGate(url, jobs)`` holds meanwhile."""

    def __init__(
        self, function: Handler, found: CronJob, policies: JobPolicies
    ) -> None:
        self.name = found.name
        self.schedule = found.schedule
        self.lock_key = found.lock_key
        self.execute = _Keyed(function, self.name, self.lock_key)  # type: ignore[method-assign]
        self.__dict__.update(policies)
        self.__doc__ = function.__doc__

    def execute(
        self, ctx: JobContext, /
    ) -> object:  # pragma: no cover - hidden by the instance's attribute
        raise NotImplementedError

    def __call__(self, ctx: JobContext) -> object:
        return self.execute(ctx)


def distributed_scheduled(
    *,
    cron: str,
    lock_key: int,
    name: str | None = None,
    service: str | None = None,
    tz: str | None = None,
    **policies: Unpack[JobPolicies],
) -> Callable[[Handler], KeyedJob]:
    """Make a job of a function, as the guideline's annotation does:
    ``@distributed_scheduled(cron=…, lock_key=5001)``.

    The job is called as the function, or ``name``; with ``service`` it is ``<service>.<name>``.
    ``tz`` is the zone of ``cron``, else ``CRON_TZ`` of the environment; a schedule that fixes an
    hour, day, month or weekday needs one. Further keywords are policies of the job. Pass the jobs
    to ``JobRegistry(jobs=…)`` and ``AdvisoryGate(url, jobs)``.

    Raise InvalidJob with a line for each problem.
    """
    zone = tz or os.environ.get(ZONE_VARIABLE) or None
    if unknown := sorted(policies.keys() - JobPolicies.__annotations__.keys()):
        cure = "write cron=" if unknown[0] == "schedule" else "remove it"
        raise InvalidJob(
            f"@distributed_scheduled: unknown argument {unknown[0]}; {cure}"
        )
    for argument, value in (("name", name), ("service", service)):
        if value is not None and not value.strip():
            raise InvalidJob(
                f"@distributed_scheduled: {argument} must not be empty; leave it out or name it"
            )

    def make(function: Handler) -> KeyedJob:
        mine = name or function.__name__
        entry = json.dumps(
            {mine: {"schedule": cron, "lockKey": lock_key}}, default=repr
        )
        try:
            (found,) = parse_cron_jobs(entry, service=service, tz=zone)
        except InvalidCronJobs as error:
            lines = (
                f"@distributed_scheduled: {_as_argument(mine, problem, tz)}"
                for problem in error.problems
            )
            raise InvalidJob("\n".join(lines)) from None
        return KeyedJob(function, found, policies)

    return make


def _as_argument(name: str, problem: str, tz: str | None) -> str:
    """Return a problem of an entry with the names of the decorator's arguments."""
    for json_name, argument in (("lockKey", "lock_key"), ("schedule", "cron")):
        if problem.startswith(f"{name}.{json_name}: "):
            problem = problem.replace(
                f"{name}.{json_name}: ", f"{name}.{argument}: ", 1
            )
    if tz is not None and problem.startswith(f"{ZONE_VARIABLE}: "):
        return problem.replace(ZONE_VARIABLE, "tz", 1)
    return problem.replace(
        f"; set {ZONE_VARIABLE},", f"; write tz= or set {ZONE_VARIABLE},"
    )


def bind_cron_jobs(
    handlers: Mapping[str, Handler] | Iterable[Handler],
    *,
    environ: Mapping[str, str] | None = None,
    service: str | None = None,
    lock_keys: LockKeys | None = None,
    tz: str | None = None,
    beside: Iterable[KeyedJob] = (),
    **policies: Unpack[JobPolicies],
) -> list[KeyedJob]:
    """Make a job of each entry of ``CRON_JOBS``, and return them after those ``beside``, which the
    code declares.

    ``handlers`` are functions by the names of the entries, or functions alone: ``token_cleanup``
    and ``tokenCleanup`` are handlers of the entry ``tokenCleanup``. A handler without an entry
    does not run. ``service``, ``lock_keys`` and ``tz`` are as for ``parse_cron_jobs``;
    ``policies`` are those of all jobs made here.

    Raise InvalidCronJobs, which lists every problem with its job and field: also a key that a job
    ``beside`` has.
    """
    declared = list(beside)
    problems: list[str] = []
    known = _by_name(handlers, problems)
    names = _entry_names(known)
    try:
        found = read_cron_jobs(
            os.environ if environ is None else environ,
            handlers=names,
            service=service,
            lock_keys=lock_keys,
            tz=tz,
            beside=[(job.name, job.lock_key) for job in declared],
        )
    except InvalidCronJobs as error:
        raise InvalidCronJobs([*problems, *error.problems]) from None
    if problems:
        raise InvalidCronJobs(problems)
    made = [
        KeyedJob(
            known[entry.job] if entry.job in known else known[_snake(entry.job)],
            entry,
            policies,
        )
        for entry in found
    ]
    return [*declared, *made]


def _by_name(
    handlers: Mapping[str, Handler] | Iterable[Handler], problems: list[str]
) -> dict[str, Handler]:
    if isinstance(handlers, Mapping):
        return dict(handlers)
    found: dict[str, Handler] = {}
    for handler in handlers:
        name = getattr(handler, "__name__", "")
        if name in found:
            problems.append(
                f"{name}: two handlers have this name; pass a dict with a name for each"
            )
        found[name] = handler
    return found


def _entry_names(known: Mapping[str, Handler]) -> list[str]:
    """Return the names that entries may have, in the spelling of JSON where it differs from
    Python's.
    """
    return [
        *known,
        *(spelled for name in known if (spelled := _camel(name)) not in known),
    ]


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)


def _snake(name: str) -> str:
    return _HUMP.sub("_", name).lower()
