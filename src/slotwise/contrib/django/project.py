"""A Django project's registry: its settings, its database, its jobs; and scheduling in its transactions."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

from slotwise.client.arguments import Receipt
from slotwise.contrib.discovery import collect, import_module, in_module
from slotwise.errors import ConfigurationError, InvalidSetting, SlotwiseError
from slotwise.jobs.context import Context
from slotwise.registry.registry import JobRegistry

try:
    import django
    from asgiref.sync import sync_to_async
    from django.apps import apps
    from django.conf import settings
    from django.core.signals import setting_changed
    from django.db import DEFAULT_DB_ALIAS, close_old_connections, connections, reset_queries
    from django.utils.module_loading import import_string, module_has_submodule
except ImportError:
    raise ConfigurationError("this needs Django; run: pip install 'slotwise[django]'") from None

T = TypeVar("T")

#: What ``--app`` names for processes that are not started by manage.py.
APP: Final = "slotwise.contrib.django.worker:registry"

#: Keys of SLOTWISE that are parts of a registry: dotted paths or objects, one or a list.
_LISTS: Final = ("LISTENERS", "INTERCEPTORS", "BEFORE_START", "AT_INSERT", "AFTER_SETTLE")
_SINGLE: Final = ("LIFESPAN", "CUSTOMIZE")

#: Keys of DATABASES' OPTIONS that are Django's own or its connection's, and no parameters of libpq.
_OWN_OPTIONS: Final = frozenset(
    {"pool", "isolation_level", "server_side_binding", "assume_role", "cursor_factory", "context", "prepare_threshold"}
    | {"client_encoding", "autocommit"}
)


class _Made:
    """The registry of this process, and the address for which it was made."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.address: str | None = None
        self.registry: JobRegistry | None = None


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
    given = _given()
    address = database_address(given.get("DATABASE", DEFAULT_DB_ALIAS))
    with _made.lock:
        if _made.registry is None or _made.address != address:
            former, _made.registry = _made.registry, _build(given, address)
            _made.address = address
            if former is not None and former.worker is None:
                former.stop()  # a test database has been made or dropped
        return _made.registry


def alias() -> str:
    """Return the alias of the database that has slotwise's tables."""
    return str(_given().get("DATABASE", DEFAULT_DB_ALIAS))


def joining(using: str | None = None) -> Any:
    """Return Django's connection if ``transaction.atomic`` is open on it, else None: for ``connection=`` of a client.

    ``using`` is an alias of DATABASES; the default is that of slotwise's tables. Raises ConfigurationError if the open
    transaction is not on PostgreSQL: the other connection would wait for it.
    """
    connection = connections[using or alias()]
    if not connection.in_atomic_block:
        return None
    if connection.vendor != "postgresql":
        raise ConfigurationError(
            f"DATABASES[{connection.alias!r}] is {connection.vendor}: a task cannot join its transaction.atomic; "
            "schedule in transaction.on_commit"
        )
    return connection


def schedule(task: Any, data: Any = None, *, using: str | None = None, **options: Any) -> Receipt:
    """Schedule a one-time task: within ``transaction.atomic`` in its transaction, else at once.

    Also within ``transaction.on_commit``. ``options`` are those of ``Client.schedule``, ``using`` that of ``joining``.
    """
    return registry().client.schedule(task, data, connection=joining(using), **options)


async def aschedule(task: Any, data: Any = None, *, using: str | None = None, **options: Any) -> Receipt:
    """As ``schedule``, awaited; on the thread that Django uses for its connections."""
    found: Receipt = await sync_to_async(functools.partial(schedule, task, data, using=using, **options))()
    return found


class InMemory(ConfigurationError):
    """The database is SQLite in memory: tests that need no jobs may run nevertheless."""


def _in_memory(given: Mapping[str, Any]) -> bool:
    return ":memory:" in str(given["NAME"]) or "mode=memory" in str(given["NAME"])


def database_address(name: str) -> str:
    """Return slotwise's address of a database in DATABASES. Raises ConfigurationError with the cure."""
    if name not in settings.DATABASES:
        known = ", ".join(sorted(settings.DATABASES))
        raise ConfigurationError(f"settings.SLOTWISE['DATABASE'] is {name!r}; aliases in DATABASES: {known}")
    connection = connections[name]
    given = connection.settings_dict
    if connection.vendor == "sqlite":
        if _in_memory(given):
            raise InMemory(
                f"DATABASES[{name!r}] is SQLite in memory, which slotwise's own connections cannot see; use a file (in "
                "tests: TEST = {'NAME': 'test.sqlite3'}), or PostgreSQL"
            )
        return f"sqlite:///{given['NAME']}"
    if connection.vendor != "postgresql":
        raise ConfigurationError(
            f"DATABASES[{name!r}] is {connection.vendor}; slotwise needs PostgreSQL or SQLite: name an alias of such a "
            "database in settings.SLOTWISE['DATABASE']"
        )
    return _postgresql(given)


def _postgresql(given: Mapping[str, Any]) -> str:
    options = given.get("OPTIONS") or {}
    named = {"host": given.get("HOST"), "port": given.get("PORT"), "dbname": given.get("NAME")}
    named |= {"user": given.get("USER"), "password": given.get("PASSWORD")}
    found = {key: str(value) for key, value in named.items() if value}
    found = {key: str(value) for key, value in options.items() if key not in _OWN_OPTIONS} | found
    if role := options.get("assume_role"):
        found["options"] = f"{found.get('options', '')} -c role={role}".strip()
    login = quote(found.pop("user", ""), safe="")
    if password := found.pop("password", ""):
        login += f":{quote(password, safe='')}"
    name = quote(found.pop("dbname", ""), safe="")
    return f"postgresql://{f'{login}@' if login else ''}/{name}?{urlencode(found, quote_via=quote)}"


def _given() -> Mapping[str, Any]:
    given = getattr(settings, "SLOTWISE", {})
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"settings.SLOTWISE is {given!r:.80}; write a dictionary, e.g. {{'THREADS': 8}}")
    return given


def place() -> dict[str, Any]:
    """Return the settings that locate the tables, without building a registry: for migrations."""
    folded = {key.casefold().replace("-", "_"): value for key, value in _given().items()}
    return {name: folded[name] for name in ("table_prefix", "schema") if name in folded}


def _build(given: Mapping[str, Any], address: str) -> JobRegistry:
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
        return JobRegistry(jobs=found.jobs, tasks=found.tasks, **parts, **{"app": APP} | values, database_url=address)
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
def fresh_connections(ctx: Context) -> Iterator[None]:
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


def release_before_drop() -> None:
    """Close slotwise's connections before a test runner drops the test database, which would fail otherwise."""
    name = _given().get("DATABASE", DEFAULT_DB_ALIAS)
    if name not in settings.DATABASES:
        return  # the system check reports it
    creation = connections[name].creation
    drop = creation.destroy_test_db

    @functools.wraps(drop)
    def release_and_drop(*args: Any, **options: Any) -> Any:
        with _made.lock:
            if _made.registry is not None:
                _made.registry.stop()
        return drop(*args, **options)

    creation.destroy_test_db = release_and_drop


def set_up() -> None:
    """Call ``django.setup()`` unless that has been done."""
    if not apps.ready:
        django.setup()


def _forget(*, setting: str, **_: Any) -> None:
    """In tests with ``override_settings``, the next use builds another registry."""
    if setting in ("SLOTWISE", "TASKS", "INSTALLED_APPS"):
        with _made.lock:
            _made.address = None


setting_changed.connect(_forget)
