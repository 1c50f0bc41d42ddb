"""A Django project's registry: its settings and its jobs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from slotwise.contrib.discovery import collect, import_module, in_module
from slotwise.contrib.django.databases import alias, database_address, given_settings
from slotwise.errors import ConfigurationError, InvalidSetting, SlotwiseError
from slotwise.jobs.context import JobContext
from slotwise.registry.registry import JobRegistry
from slotwise.store.connect.database import Database

try:
    import django
    from asgiref.sync import sync_to_async
    from django.apps import apps
    from django.core.signals import setting_changed
    from django.db import close_old_connections, reset_queries
    from django.utils.module_loading import import_string, module_has_submodule
except ImportError:
    raise ConfigurationError("this needs Django; run: pip install 'slotwise[django]'") from None

#: What ``--app`` names for processes that are not started by manage.py.
APP: Final = "slotwise.contrib.django.worker:registry"

#: Keys of SLOTWISE that are parts of a registry: dotted paths or objects, one or a list.
_LISTS: Final = ("LISTENERS", "INTERCEPTORS", "BEFORE_START", "AT_INSERT", "AFTER_SETTLE")
_SINGLE: Final = ("LIFESPAN", "CUSTOMIZE")


class ProjectRegistry(JobRegistry):
    """Follows the settings of its database: a test runner replaces them when it has created a test database."""

    @property
    def database(self) -> Database:
        """As of every registry. A client that was made before the test database must not reach the real one."""
        self.follow(database_address(alias()))
        return super().database

    def follow(self, address: str) -> None:
        """Use the database at this address from now on; a running worker keeps its own."""
        with _made.lock:
            if address != self.settings.database_url and self.worker is None:
                self._configured(database_url=address)


class _Made:
    """The registry of this process; ``is_valid`` until settings change."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.is_valid = False
        self.registry: ProjectRegistry | None = None


_made = _Made()


def registry() -> JobRegistry:
    """Return the registry of this project, built on first use from ``settings.SLOTWISE`` and the apps' jobs.

    It uses the database of DATABASES that the setting names, in tests the test database. Raises ConfigurationError
    before ``django.setup()``, and what JobRegistry and ``discover`` raise.
    """
    if not apps.ready:
        raise ConfigurationError(
            "Django is not set up; start the worker as: python manage.py slotwise worker, or call django.setup() first"
        )
    given = given_settings()
    address = database_address(alias())
    with _made.lock:
        if _made.registry is None or not _made.is_valid:
            former, _made.registry = _made.registry, _build(given, address)
            _made.is_valid = True
            if former is not None and former.worker is None:
                former.stop()
        _made.registry.follow(address)
        return _made.registry


def _build(given: Mapping[str, Any], address: str) -> ProjectRegistry:
    own = {"DATABASE", "JOBS", "RESOLVERS", *_LISTS, *_SINGLE}
    parts: dict[str, Any] = {word.lower(): [_loaded(one, word) for one in _several(given, word)] for word in _LISTS}
    parts["interceptors"] = [fresh_connections, *parts["interceptors"]]
    parts |= {word.lower(): _loaded(given[word], word) for word in _SINGLE if given.get(word) is not None}
    values = {key: value for key, value in given.items() if key not in own}
    if refused := next((key for key in values if key.casefold().replace("-", "_") == "database_url"), None):
        raise InvalidSetting(
            f"settings.SLOTWISE[{refused!r}]: name an alias of DATABASES in 'DATABASE' instead, so that tests use the "
            "test database"
        )
    found = collect(_subjects(given), [_loaded(one, "RESOLVERS") for one in _several(given, "RESOLVERS")])
    try:
        return ProjectRegistry(
            jobs=found.jobs, tasks=found.tasks, **parts, **{"app": APP} | values, database_url=address
        )
    except InvalidSetting as error:
        raise InvalidSetting(f"settings.SLOTWISE: {error}") from None
    except SlotwiseError as error:
        if not found.jobs and not found.tasks:
            raise ConfigurationError(
                "no app has jobs: write them in a module jobs of an app, name modules in settings.SLOTWISE['JOBS'], or "
                "use slotwise in settings.TASKS"
            ) from error
        raise


def _subjects(given: Mapping[str, Any]) -> Iterator[object]:
    """Yield what the project defines: in the modules that the setting names, else in those named jobs of the apps."""
    from slotwise.contrib.django.backend import backend_tasks

    for name in _several(given, "JOBS") if "JOBS" in given else _job_modules():
        if not isinstance(name, str):
            raise ConfigurationError(f"settings.SLOTWISE['JOBS'] has {name!r:.80}; expected names of modules")
        yield from in_module(import_module(name))
    yield from backend_tasks()


def _job_modules() -> Iterator[str]:
    for app in apps.get_app_configs():
        if app.module is not None and module_has_submodule(app.module, "jobs"):
            yield f"{app.name}.jobs"


def _several(given: Mapping[str, Any], word: str) -> Iterable[Any]:
    value = given.get(word, ())
    return [value] if isinstance(value, str) or not isinstance(value, Iterable) else value


def _loaded(value: Any, word: str) -> Any:
    """Return the object that a dotted path names; a class of a resolver is called."""
    if isinstance(value, str):
        try:
            value = import_string(value)
        except ImportError as error:
            raise ConfigurationError(f"settings.SLOTWISE[{word!r}]: {error}; correct the dotted path") from error
    return value() if word == "RESOLVERS" and isinstance(value, type) else value


@contextmanager
def fresh_connections(ctx: JobContext) -> Iterator[None]:
    """Close connections of Django that are too old or broken, before and after a handler, as around a request."""
    _close()
    try:
        yield
    finally:
        _close()


_closing: set[asyncio.Task[None]] = set()


def _close() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        reset_queries()
        close_old_connections()
        return
    # An async handler's queries run on the thread of sync_to_async: its connections are closed there.
    task = asyncio.ensure_future(sync_to_async(close_old_connections)())
    _closing.add(task)
    task.add_done_callback(_closing.discard)


def stop() -> None:
    """Stop the worker of this process, if any, and close slotwise's connections."""
    with _made.lock:
        if _made.registry is not None:
            _made.registry.stop()


def set_up() -> None:
    """Call ``django.setup()`` unless that has been done."""
    if not apps.ready:
        django.setup()


def _forget(*, setting: str, **_: Any) -> None:
    """In tests with ``override_settings``, the next use builds another registry."""
    if setting in ("SLOTWISE", "TASKS", "INSTALLED_APPS"):
        with _made.lock:
            _made.is_valid = False


setting_changed.connect(_forget)
