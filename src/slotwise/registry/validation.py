"""What a registry refuses: each error is one line with the cure."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from difflib import get_close_matches
from typing import TypeAlias, TypeVar

from slotwise.errors import (
    ConfigurationError,
    DriverMissing,
    InvalidJob,
    InvalidSetting,
    SlotwiseError,
    UnknownTask,
    located,
)
from slotwise.jobs.definition import (
    Definition,
    define,
    rescheduled,
)
from slotwise.jobs.job import DistributedJob, OneTimeTask
from slotwise.settings.settings import Settings
from slotwise.settings.settings import place as place_of
from slotwise.store.connect.dsn import database_url
from slotwise.store.slots.settlement_hooks import AfterSettle

Customize: TypeAlias = Callable[[Settings], Settings]
Called = TypeVar("Called")


def check_callables(given: Iterable[Called], what: str) -> Iterable[Called]:
    """Yield what was given. Raise ConfigurationError for something that cannot be called."""
    for one in listed(given, what):
        if not callable(one):
            raise ConfigurationError(f"{what}: {one!r:.80} cannot be called")
        yield one


def check_hooks_by_name(given: Mapping[str, AfterSettle]) -> Mapping[str, AfterSettle]:
    """Return the hooks. Raise ConfigurationError unless each name has one that can be called."""
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"after_settle is {given!r:.80}; name the jobs and tasks whose settlements a hook "
            'receives: after_settle={"report": hook}'
        )
    check_all = check_callables(given.values(), "after_settle")
    return dict(zip(given, check_all, strict=True))


def check_lifespan(lifespan: Called) -> Called:
    """Return the lifespan. Raise ConfigurationError unless a call of it makes an asynchronous
    context manager.
    """
    if lifespan is not None and not callable(lifespan):
        raise ConfigurationError(
            f"lifespan is {lifespan!r:.80}; pass the function, without calling it"
        )
    if inspect.isasyncgenfunction(lifespan) or inspect.iscoroutinefunction(lifespan):
        name = getattr(lifespan, "__name__", lifespan)
        raise ConfigurationError(
            f"lifespan {name} is not a context manager; put "
            "@contextlib.asynccontextmanager above it"
        )
    return lifespan


def refuse_own_loop(host_loop: asyncio.AbstractEventLoop | None) -> None:
    """Raise ConfigurationError rather than block the loop that the start needs."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return
    if host_loop is running:
        raise ConfigurationError(
            "start would block the event loop that it needs; use: async with registry"
        )


def defined(given: Iterable[object], what: str) -> Iterable[Definition]:
    """Yield the definitions of one of the two keywords. Raise InvalidJob for one that belongs
    under the other.
    """
    for place, one in enumerate(listed(given, what)):
        with _at(what, place, one):
            found = define(one)
        if found.is_job and what == "tasks":
            raise InvalidJob(
                f"{found.name!r} among tasks has a schedule, so it is a job; pass it in jobs=[…]"
            )
        if not found.is_job and what == "jobs":
            raise InvalidJob(
                f"{found.name!r} among jobs is a one-time task, without a "
                "schedule; pass it in tasks=[…]"
            )
        yield found


@contextmanager
def _at(what: str, place: int, given: object) -> Iterator[None]:
    """Name the place of what is no declaration, and so has no name."""
    try:
        yield
    except InvalidJob as error:
        if isinstance(given, DistributedJob | OneTimeTask | type):
            raise
        raise InvalidJob(f"{what}[{place}]: {error}") from None


def definitions_of(subjects: Iterable[object]) -> dict[str, Definition]:
    """Return the definitions of jobs and tasks, some of which may be definitions already, by name.

    Raise InvalidJob with the cure.
    """
    given = listed(subjects, "jobs")
    return unique(
        [one if isinstance(one, Definition) else define(one) for one in given]
    )


def unique(definitions: list[Definition]) -> dict[str, Definition]:
    """Return the definitions by name. Raise InvalidJob for two of one name, and if there are
    none.
    """
    if not definitions:
        raise InvalidJob(
            "at least one job or task must be registered; e.g. JobRegistry(jobs=[NightlyReport()])"
        )
    double = [
        name
        for name, count in Counter(found.name for found in definitions).items()
        if count > 1
    ]
    if double:
        raise InvalidJob(
            "names must be unique within a registry; more than once: "
            f"{', '.join(map(repr, double))}"
        )
    return _with_former_names({found.name: found for found in definitions})


def _with_former_names(known: dict[str, Definition]) -> dict[str, Definition]:
    """Return the definitions, and one for each former name. Raise InvalidJob for a former name
    that is another's.
    """
    found = dict(known)
    for definition in known.values():
        for alias in definition.aliases:
            if alias in found:
                raise InvalidJob(
                    f"{definition.name}.aliases has {alias!r}, which is a name of "
                    f"{found[alias].renamed_to or alias!r}; remove it from one of them"
                )
            found[alias] = replace(
                definition, name=alias, aliases=(), renamed_to=definition.name
            )
    return found


def job_named(definitions: Mapping[str, Definition], name: str) -> Definition:
    """Return a job. Raise UnknownTask for no task, and ConfigurationError for a one-time task."""
    found = definitions.get(name)
    if found is None:
        cure = _near(name, definitions, "known are")
        raise UnknownTask(f"no job {name!r} in this registry; {cure}")
    if not found.is_job:
        raise ConfigurationError(
            f"{name!r} is a one-time task; schedule it: registry.client.schedule({name!r}, …)"
        )
    return found


def _near(name: str, known: Iterable[str], otherwise: str) -> str:
    near = get_close_matches(name, known, n=1)
    return (
        f"did you mean {near[0]!r}?"
        if near
        else f"{otherwise} {', '.join(sorted(known))}"
    )


def by_settings(
    definitions: Mapping[str, Definition], settings: Settings
) -> dict[str, Definition]:
    """Return the definitions, jobs with the schedules that the settings have for them."""
    found = dict(definitions)
    try:
        for name, text in sorted(settings.schedules):
            if name not in found:
                cure = _near(name, found, "known:")
                raise ConfigurationError(
                    f"schedules names {name!r}, which is not registered; {cure}"
                )
            found[name] = rescheduled(found[name], text, f"schedules[{name!r}]")
    except SlotwiseError as error:
        error.place = place_of("schedules", settings.schedules)
        raise
    return found


def customized(settings: Settings, customize: Customize | None) -> Settings:
    """Return the settings that ``customize`` makes of these. Raise InvalidSetting for an invalid
    address.

    ``DATABASE_URL`` is shared with other programs, and the command line may override it, so it is
    read when it is used.
    """
    if customize is not None:
        if not callable(customize):
            raise ConfigurationError(
                f"customize is {customize!r:.80}; pass a function from settings to settings"
            )
        settings = customize(settings)
        if not isinstance(settings, Settings):
            kind = type(settings).__name__
            raise ConfigurationError(
                f"customize returned {kind}; return the settings, e.g. settings.replace(threads=4)"
            )
    with suppress(DriverMissing):
        if settings.database_url not in (
            None,
            os.environ.get("DATABASE_URL", "").strip(),
        ):
            database_url(settings.database_url)
        if settings.wake_up_url is not None:
            with located("wake_up_url", InvalidSetting):
                database_url(settings.wake_up_url)
    return settings


def listed(given: Iterable[Called], what: str) -> Iterable[Called]:
    """Return what was given. Raise InvalidJob if it cannot be iterated over."""
    if given is None:
        raise InvalidJob(f"{what} cannot be None; pass a list of {what}")
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidJob(f"{what} is {given!r:.80}; pass a list of {what}")
    return given
