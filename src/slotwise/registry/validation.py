"""What a registry is given, checked: each complaint is one line with the cure."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, TypeAlias

from slotwise.engine.run.event_loop import Lifespan
from slotwise.errors import ConfigurationError, DriverMissing, InvalidJob, InvalidSetting, SlotwiseError
from slotwise.jobs.definition import Definition, define, rescheduled
from slotwise.settings.settings import Settings
from slotwise.settings.sources import READERS, place
from slotwise.store.connect.dsn import database_url

Customize: TypeAlias = Callable[[Settings], Settings]


def callables(given: Any, what: str) -> Iterable[Any]:
    """What was given, if each can be called."""
    for one in listed(given, what):
        if not callable(one):
            raise ConfigurationError(f"{what}: {one!r:.80} cannot be called")
        yield one


def checked_lifespan(lifespan: Lifespan | None) -> Lifespan | None:
    """The lifespan, if it makes an asynchronous context manager when it is called."""
    if lifespan is not None and not callable(lifespan):
        raise ConfigurationError(f"lifespan is {lifespan!r:.80}; pass the function, without calling it")
    if inspect.isasyncgenfunction(lifespan) or inspect.iscoroutinefunction(lifespan):
        name = getattr(lifespan, "__name__", lifespan)
        raise ConfigurationError(f"lifespan {name} is no context manager; put @contextlib.asynccontextmanager above it")
    return lifespan


def refuse_own_loop(host_loop: asyncio.AbstractEventLoop | None) -> None:
    """Refuse to block the loop that the start needs."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return
    if host_loop is running:
        raise ConfigurationError("start would wait for the loop that waits for it; write: async with registry")


def defined(given: Iterable[object], what: str) -> Iterable[Definition]:
    """What was given under one of the two keywords. Raises InvalidJob if it belongs under the other."""
    for found in map(define, listed(given, what)):
        if found.is_job and what == "tasks":
            raise InvalidJob(f"{found.name!r} among tasks has a schedule, so it is a job; pass it in jobs=[…]")
        if not found.is_job and what == "jobs":
            raise InvalidJob(f"{found.name!r} among jobs is a one-time task, without a schedule; pass it in tasks=[…]")
        yield found


def unique(definitions: list[Definition]) -> dict[str, Definition]:
    """By name. Raises InvalidJob for two of one name, and for none at all."""
    if not definitions:
        raise InvalidJob("at least one job or task must be registered; e.g. JobRegistry(jobs=[NightlyReport()])")
    double = [name for name, count in Counter(found.name for found in definitions).items() if count > 1]
    if double:
        raise InvalidJob(f"names must be unique within a registry; more than once: {', '.join(map(repr, double))}")
    return {found.name: found for found in definitions}


def by_settings(definitions: Mapping[str, Definition], settings: Settings) -> dict[str, Definition]:
    """The definitions, jobs by the schedules that the settings have for them."""
    try:
        return _by_schedules(definitions, settings)
    except SlotwiseError as error:
        error.place = place("schedules", settings.schedules, READERS)
        raise


def _by_schedules(definitions: Mapping[str, Definition], settings: Settings) -> dict[str, Definition]:
    found = dict(definitions)
    for name, text in sorted(settings.schedules):
        if name not in found:
            near = get_close_matches(name, found, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(found))}"
            raise ConfigurationError(f"schedules names {name!r}, which is not registered; {hint}")
        found[name] = rescheduled(found[name], text, f"schedules[{name!r}]")
    return found


def customized(settings: Settings, customize: Customize | None) -> Settings:
    """What the registry's own function makes of the settings. Raises InvalidSetting for an address that cannot be one.

    ``DATABASE_URL`` is everybody's, and the command line may yet outrank it: that one is read when it is used.
    """
    found = settings if customize is None else _customized(settings, customize)
    for name, address in (("database_url", found.database_url), ("wake_up_url", found.wake_up_url)):
        if address is not None and (name != "database_url" or address != os.environ.get("DATABASE_URL", "").strip()):
            _check_address(name, address)
    return found


def _check_address(name: str, address: str) -> None:
    with suppress(DriverMissing):
        try:
            database_url(address)
        except InvalidSetting as error:
            if name == "database_url":
                raise
            raise InvalidSetting(f"{name}: {error}") from None


def _customized(settings: Settings, customize: Customize) -> Settings:
    if not callable(customize):
        raise ConfigurationError(f"customize is {customize!r:.80}; pass a function from settings to settings")
    customized = customize(settings)
    if not isinstance(customized, Settings):
        raise ConfigurationError(
            f"customize returned {type(customized).__name__}; return the settings, e.g. settings.replace(threads=4)"
        )
    return customized


def listed(given: Any, what: str) -> Iterable[Any]:
    """What was given, if it is a list of something. Raises InvalidJob."""
    if given is None:
        raise InvalidJob(f"{what} cannot be None; pass a list of {what}")
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidJob(f"{what} is {given!r:.80}; pass a list of {what}")
    return given
