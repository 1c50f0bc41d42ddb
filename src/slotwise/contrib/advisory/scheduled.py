"""Jobs with a lock key: declared in code by ``@distributed_scheduled``, or in ``CRON_JOBS`` and bound to handlers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias, Unpack

from slotwise.contrib.advisory.cron_jobs import ZONE_VARIABLE, CronJob, parse_cron_jobs, read_cron_jobs
from slotwise.contrib.advisory.lock_keys import LockKeys
from slotwise.errors import InvalidCronJobs, InvalidJob
from slotwise.jobs.context import JobContext
from slotwise.jobs.job import DistributedJob, JobPolicies

#: What runs at each tick.
Handler: TypeAlias = Callable[[JobContext], object]

_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class KeyedJob(DistributedJob):
    """A job that runs under a lock key, which ``AdvisoryGate(url, jobs)`` holds meanwhile."""

    def __init__(self, function: Handler, found: CronJob, policies: JobPolicies) -> None:
        self.name, self.schedule, self.lock_key = found.name, found.schedule, found.lock_key
        self.execute = function  # type: ignore[method-assign]
        self.__dict__.update(policies)
        self.__doc__ = function.__doc__

    def execute(self, ctx: JobContext, /) -> object:  # pragma: no cover - hidden by the instance's attribute
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
    """Make a job of a function, as the guideline's annotation does: ``@distributed_scheduled(cron=…, lock_key=5001)``.

    The job is called as the function, or ``name``; with ``service`` it is ``<service>.<name>``. ``tz`` is the zone of
    ``cron``, else ``CRON_TZ`` of the environment; a schedule that fixes an hour, day, month or weekday needs one.
    Further keywords are policies of the job. Pass the jobs to ``JobRegistry(jobs=…)`` and ``AdvisoryGate(url, jobs)``.

    Raise InvalidJob with a line for each problem.
    """
    zone = tz or os.environ.get(ZONE_VARIABLE) or None

    def make(function: Handler) -> KeyedJob:
        mine = name or function.__name__
        entry = json.dumps({mine: {"schedule": cron, "lockKey": lock_key}}, default=repr)
        try:
            (found,) = parse_cron_jobs(entry, service=service, tz=zone)
        except InvalidCronJobs as error:
            lines = (f"@distributed_scheduled: {_as_argument(mine, problem, tz)}" for problem in error.problems)
            raise InvalidJob("\n".join(lines)) from None
        return KeyedJob(function, found, policies)

    return make


def _as_argument(name: str, problem: str, tz: str | None) -> str:
    """Return a problem of an entry with the names of the decorator's arguments."""
    for field, argument in (("lockKey", "lock_key"), ("schedule", "cron")):
        if problem.startswith(f"{name}.{field}: "):
            problem = problem.replace(f"{name}.{field}: ", f"{name}.{argument}: ", 1)
    if tz is not None and problem.startswith(f"{ZONE_VARIABLE}: "):
        return problem.replace(ZONE_VARIABLE, "tz", 1)
    return problem.replace(f"; set {ZONE_VARIABLE},", f"; write tz= or set {ZONE_VARIABLE},")


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
    """Make a job of each entry of ``CRON_JOBS``, and return them after those ``beside``, which the code declares.

    ``handlers`` are functions by the names of the entries, or functions alone: ``token_cleanup`` and ``tokenCleanup``
    are handlers of the entry ``tokenCleanup``. A handler without an entry does not run. ``service``, ``lock_keys`` and
    ``tz`` are as for ``parse_cron_jobs``; ``policies`` are those of all jobs made here.

    Raise InvalidCronJobs, which lists every problem with its job and field: also a key that a job ``beside`` has.
    """
    declared = list(beside)
    problems: list[str] = []
    known = _by_name(handlers, problems)
    names = _entry_names(known)
    try:
        found = read_cron_jobs(
            os.environ if environ is None else environ, handlers=names, service=service, lock_keys=lock_keys, tz=tz,
            beside=[(job.name, job.lock_key) for job in declared],
        )  # fmt: skip
    except InvalidCronJobs as error:
        raise InvalidCronJobs([*problems, *error.problems]) from None
    if problems:
        raise InvalidCronJobs(problems)
    made = [
        KeyedJob(known[entry.job] if entry.job in known else known[_snake(entry.job)], entry, policies)
        for entry in found
    ]
    return [*declared, *made]


def _by_name(handlers: Mapping[str, Handler] | Iterable[Handler], problems: list[str]) -> dict[str, Handler]:
    if isinstance(handlers, Mapping):
        return dict(handlers)
    found: dict[str, Handler] = {}
    for handler in handlers:
        name = getattr(handler, "__name__", "")
        if name in found:
            problems.append(f"{name}: two handlers have this name; pass a dict with a name for each")
        found[name] = handler
    return found


def _entry_names(known: Mapping[str, Handler]) -> list[str]:
    """Return the names that entries may have, in the spelling of JSON where it differs from Python's."""
    return [*known, *(spelled for name in known if (spelled := _camel(name)) not in known)]


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)


def _snake(name: str) -> str:
    return _HUMP.sub("_", name).lower()
