"""A Django project's registry: its settings, its database, its jobs, and what tests and the system
check need.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, Final
from urllib.parse import quote, urlencode

from slotwise import (
    ConfigurationError,
    Context,
    InvalidSetting,
    JobRegistry,
    SlotwiseError,
)
from slotwise.contrib.discovery import collect, import_module, in_module
from slotwise.contrib.django.mysql_address import mysql_address
from slotwise.spi import Database, check_callables, check_lifespan

try:
    import django
    from asgiref.sync import sync_to_async
    from django.apps import apps
    from django.conf import settings
    from django.core import checks
    from django.core.signals import setting_changed
    from django.db import DEFAULT_DB_ALIAS, connections, reset_queries
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.utils.module_loading import module_has_submodule
except ImportError:
    raise ConfigurationError(
        "this needs Django; run: pip install 'slotwise[django]'"
    ) from None

#: Keys of DATABASES' OPTIONS that are Django's own or its connection's, and no parameters of
#: libpq.
_OWN_OPTIONS: Final = frozenset(
    {
        "pool",
        "isolation_level",
        "server_side_binding",
        "assume_role",
        "cursor_factory",
        "context",
        "prepare_threshold",
    }
    | {"client_encoding", "autocommit"}
)


class InMemory(ConfigurationError):
    """The database is SQLite in memory: tests that need no jobs may run nevertheless."""


def given_settings() -> Mapping[str, object]:
    """Return ``settings.SLOTWISE``, with Django's own keys in capitals. Raises ConfigurationError
    if it is no dict.
    """
    given = getattr(settings, "SLOTWISE", {})
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"settings.SLOTWISE is {given!r:.80}; write a dictionary, e.g. {{'THREADS': 8}}"
        )
    if wrong := [key for key in given if not isinstance(key, str)]:
        raise ConfigurationError(
            f"settings.SLOTWISE has the key {wrong[0]!r:.80}; write a string, e.g. 'THREADS'"
        )
    return given


def alias() -> str:
    """Return the alias of the database that has slotwise's tables. Raises ConfigurationError if
    there is none.
    """
    given = next(
        (
            value
            for key, value in given_settings().items()
            if key.upper() == "DATABASE"
        ),
        None,
    )
    return checked_alias(
        DEFAULT_DB_ALIAS if given is None else given,
        "settings.SLOTWISE['DATABASE'] is {!r}, which",
    )


def checked_alias(name: object, said: str) -> str:
    """Return an alias of DATABASES. Raises ConfigurationError, which begins with ``said``."""
    if isinstance(name, str) and name in settings.DATABASES:
        return name
    near = (
        get_close_matches(name, settings.DATABASES, n=1)
        if isinstance(name, str)
        else []
    )
    cure = (
        f"did you mean {near[0]!r}?"
        if near
        else f"known: {', '.join(sorted(settings.DATABASES))}"
    )
    raise ConfigurationError(f"{said.format(name)} is no alias in DATABASES; {cure}")


def _in_memory(given: Mapping[str, object]) -> bool:
    return ":memory:" in str(given["NAME"]) or "mode=memory" in str(given["NAME"])


def database_address(name: str) -> str:
    """Return slotwise's address of a database in DATABASES. Raises ConfigurationError with the
    cure.
    """
    connection = connections[name]
    given = connection.settings_dict
    if connection.vendor == "sqlite":
        if _in_memory(given):
            raise InMemory(
                f"DATABASES[{name!r}] is SQLite in memory, which slotwise's own "
                "connections cannot see; use a file (in "
                "tests: TEST = {'NAME': 'test.sqlite3'}), or PostgreSQL"
            )
        return f"sqlite:///{given['NAME']}"
    if connection.vendor == "mysql":
        return mysql_address(given)
    if connection.vendor != "postgresql":
        raise ConfigurationError(
            f"DATABASES[{name!r}] is {connection.vendor}; slotwise needs "
            "PostgreSQL, MariaDB, MySQL or SQLite: name an alias of such a "
            "database in settings.SLOTWISE['DATABASE']"
        )
    key = repr(
        [
            given.get(name)
            for name in ("HOST", "PORT", "NAME", "USER", "PASSWORD", "OPTIONS")
        ]
    )
    if key not in _addresses:
        _addresses[key] = _postgresql(given)
    return _addresses[key]


#: Addresses by their settings: each use of a client compares them, and a process sees few.
_addresses: dict[str, str] = {}


def _postgresql(given: Mapping[str, Any]) -> str:
    options = given.get("OPTIONS") or {}
    named = {
        "host": given.get("HOST"),
        "port": given.get("PORT"),
        "dbname": given.get("NAME"),
    }
    named |= {"user": given.get("USER"), "password": given.get("PASSWORD")}
    found = {key: str(value) for key, value in named.items() if value}
    found = {
        key: str(value) for key, value in options.items() if key not in _OWN_OPTIONS
    } | found
    if role := options.get("assume_role"):
        found["options"] = f"{found.get('options', '')} -c role={role}".strip()
    login = quote(found.pop("user", ""), safe="")
    if password := found.pop("password", ""):
        login += f":{quote(password, safe='')}"
    name = quote(found.pop("dbname", ""), safe="")
    return f"postgresql://{f'{login}@' if login else ''}/{name}?{urlencode(found, quote_via=quote)}"


def place() -> dict[str, Any]:
    """Return the settings that locate the tables, without building a registry: for migrations."""
    folded = {
        key.casefold().replace("-", "_"): value
        for key, value in given_settings().items()
    }
    return {
        name: folded[name] for name in ("table_prefix", "schema") if name in folded
    }


#: What ``--app`` names for processes that are not started by manage.py.
APP: Final = "slotwise.contrib.django.worker:registry"

#: Keys of SLOTWISE that are parts of a registry: dotted paths or objects, one or a list.
_LISTS: Final = (
    "LISTENERS",
    "INTERCEPTORS",
    "BEFORE_START",
    "AT_INSERT",
    "AFTER_SETTLE",
)
#: All keys that are Django's own.
_OWN: Final = ("DATABASE", "JOBS", "RESOLVERS", "LIFESPAN", "CUSTOMIZE", *_LISTS)


class ProjectRegistry(JobRegistry):
    """Follows the settings of its database: a test runner replaces them when it has created a test
    database.
    """

    #: The address that Django's settings had. Another one was set by a test, or on the command
    #: line, and stays.
    followed: str | None = None

    @property
    def database(self) -> Database:
        """As of every registry. A client that was made before the test database must not reach the
        real one.
        """
        self.follow(database_address(alias()))
        return super().database

    def follow(self, address: str) -> None:
        """Use the database at this address from now on; a running worker keeps its own."""
        with _made.lock:
            if (
                self.settings.database_url == self.followed != address
                and self.worker is None
            ):
                self.configure(database_url=address)
                self.followed = address


class _Made:
    """The registry of this process; ``is_valid`` until settings change."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.is_valid = False
        self.registry: ProjectRegistry | None = None


_made = _Made()


def registry() -> JobRegistry:
    """Return the registry of this project, built on first use from ``settings.SLOTWISE`` and the
    apps' jobs.

    It uses the database of DATABASES that the setting names, in tests the test database. Raises
    ConfigurationError before ``django.setup()``, and what JobRegistry and ``discover`` raise.
    """
    if not apps.ready:
        raise ConfigurationError(
            "Django is not set up; start the worker as: python manage.py slotwise "
            "worker, or call django.setup() first"
        )
    given = given_settings()
    address = database_address(alias())
    with _made.lock:
        if _made.registry is None or not _made.is_valid:
            former = _made.registry
            _made.registry = _build(given, address)
            _made.is_valid = True
            if former is not None and former.worker is None:
                former.stop()
        _made.registry.follow(address)
        return _made.registry


def _build(given: Mapping[str, object], address: str) -> ProjectRegistry:
    own, values = _own_keys(given)
    parts = _parts(own)
    with _naming("RESOLVERS"):
        resolvers = [_resolver(one) for one in _several(own.get("RESOLVERS"))]
    found = collect(_subjects(own.get("JOBS")), resolvers)
    try:
        made = ProjectRegistry(
            jobs=found.jobs, tasks=found.tasks, **parts, **values, database_url=address
        )
    except InvalidSetting as error:
        raise InvalidSetting(f"settings.SLOTWISE: {error}") from None
    except SlotwiseError as error:
        if not found.jobs and not found.tasks:
            raise ConfigurationError(
                "no app has jobs: write them in a module jobs of an app, name "
                "modules in settings.SLOTWISE['JOBS'], or "
                "use slotwise in settings.TASKS"
            ) from error
        raise
    made.followed = address
    return made


def _parts(own: Mapping[str, object]) -> dict[str, Any]:
    """Return what the project's own keys name: functions, as the registry takes them."""
    parts: dict[str, Any] = {}
    for word in _LISTS:
        with _naming(word):
            loaded = [_loaded(one) for one in _several(own.get(word))]
            parts[word.lower()] = list(check_callables(loaded, word.lower()))
    parts["interceptors"] = [fresh_connections, *parts["interceptors"]]
    with _naming("LIFESPAN"):
        parts["lifespan"] = check_lifespan(_loaded(own.get("LIFESPAN")))
    with _naming("CUSTOMIZE"):
        parts["customize"] = customize = _loaded(own.get("CUSTOMIZE"))
        if not (customize is None or callable(customize)):
            raise ConfigurationError(
                f"customize is {customize!r:.80}; pass a function from settings to settings"
            )
    return parts


def _own_keys(given: Mapping[str, object]) -> tuple[dict[str, object], dict[str, Any]]:
    """Return Django's own keys in capitals, and the keywords of the registry. Raises
    InvalidSetting for others.
    """
    own: dict[str, object] = {}
    values: dict[str, Any] = {}
    written: dict[str, str] = {}
    for key, value in given.items():
        word = key.upper().replace("-", "_")
        folded = word.replace("_", "")
        if word in written and word in _OWN:
            raise InvalidSetting(
                f"settings.SLOTWISE[{word!r}] is there twice: {written[word]!r} "
                f"and {key!r}; keep one of them"
            )
        written[word] = key
        if word in _OWN:
            own[word] = value
        elif folded == "DATABASEURL" or folded.startswith("JOBSCONFIG"):
            raise InvalidSetting(
                f"settings.SLOTWISE[{key!r}]: name an alias of DATABASES in "
                "'DATABASE' instead, so that tests use the "
                "test database"
            )
        elif near := get_close_matches(word, _OWN, n=1, cutoff=0.8):
            raise InvalidSetting(
                f"settings.SLOTWISE[{key!r}] is not a setting; did you mean {near[0]!r}?"
            )
        else:
            values[word if word in ("TASKS", "CLOCK", "CONFIG") else key] = (
                value  # a registry's, and no settings
            )
    return own, values if "APP" in written else {"app": APP} | values


@contextmanager
def _naming(word: str) -> Iterator[None]:
    """Begin errors with the key of SLOTWISE."""
    try:
        yield
    except SlotwiseError as error:
        raise ConfigurationError(f"settings.SLOTWISE[{word!r}]: {error}") from error


def _subjects(modules: object) -> Iterator[object]:
    """Yield what the project defines: in the modules that the setting names, else in those named
    jobs of the apps.
    """
    from slotwise.contrib.django.backend import backend_tasks

    if not (modules is None or isinstance(modules, Iterable)):
        raise ConfigurationError(
            f"settings.SLOTWISE['JOBS'] is {modules!r:.80}; write names of "
            "modules, e.g. ['shop.jobs']"
        )
    for name in _job_modules() if modules is None else _several(modules):
        if not isinstance(name, str) or not name:
            raise ConfigurationError(
                f"settings.SLOTWISE['JOBS'] has {name!r:.80}; write the name of a "
                "module, e.g. 'shop.jobs'"
            )
        yield from in_module(import_module(name, "settings.SLOTWISE['JOBS']"))
    yield from backend_tasks()


def _job_modules() -> Iterator[str]:
    for app in apps.get_app_configs():
        if app.module is not None and module_has_submodule(app.module, "jobs"):
            yield f"{app.name}.jobs"


def _several(value: object) -> Iterable[object]:
    if value is None:
        return []
    return (
        [value]
        if isinstance(value, str | Mapping) or not isinstance(value, Iterable)
        else value
    )


def _loaded(value: object) -> object:
    """Return the object that a dotted path names. Raises ConfigurationError with the cure."""
    if not isinstance(value, str):
        return value
    module, _, name = value.rpartition(".")
    if not module or not name:
        raise ConfigurationError(
            f"{value!r} is no dotted path; write one, e.g. 'shop.listeners.listen'"
        )
    found = import_module(module, repr(value))
    if not hasattr(found, name):
        near = get_close_matches(name, vars(found), n=1)
        cure = f"did you mean {near[0]!r}?" if near else "correct the dotted path"
        raise ConfigurationError(f"module {module} has no {name!r}; {cure}")
    return getattr(found, name)


def _resolver(value: object) -> Any:
    """Return a resolver; a class of one is called."""
    made = _loaded(value)
    if isinstance(made, type):
        try:
            made = made()
        except Exception as error:
            name = made.__name__
            raise ConfigurationError(
                f"{name}() raised {type(error).__name__}: "
                f"{' '.join(str(error).split())}; name an instance of {name}"
            ) from error
    if not isinstance(made, Mapping) and not callable(getattr(made, "resolve", None)):
        raise ConfigurationError(
            f"resolvers: {made!r:.80} has no method resolve(argument); name a resolver or a mapping"
        )
    return made


@contextmanager
def fresh_connections(ctx: Context) -> Iterator[None]:
    """Close connections of Django that are too old or broken, before and after a handler, as
    around a request.
    """
    _close()
    try:
        yield
    finally:
        _close()


def _close_old() -> None:
    """As Django around a request; but a test's transaction around the handler keeps its
    connection.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


_closing: set[asyncio.Task[None]] = set()


def _close() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        reset_queries()
        _close_old()
        return
    # An async handler's queries run on the thread of sync_to_async: its connections are closed
    # there.
    task = asyncio.ensure_future(sync_to_async(_close_old)())
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


def _forget(*, setting: str, **_: object) -> None:
    """In tests with ``override_settings``, the next use builds another registry."""
    if setting in ("SLOTWISE", "TASKS", "INSTALLED_APPS"):
        with _made.lock:
            _made.is_valid = False


setting_changed.connect(_forget)


_ensure_connection = BaseDatabaseWrapper.ensure_connection


def guard_tests() -> None:
    """Refuse slotwise's own connections where a test may not use Django's connection to the same
    database.

    Django creates a test database only for aliases in ``TestCase.databases``. The settings of
    other aliases still lead to the real database.
    """
    if _guard not in Database.guards:
        Database.guards.append(_guard)


def _guard(database: Database) -> None:
    if BaseDatabaseWrapper.ensure_connection is _ensure_connection:
        return  # no test of Django is running
    name = alias()
    if database.settings.database_url == database_address(name):
        refuse_in_tests(name)


def refuse_in_tests(name: str) -> None:
    """Raise what Django raises if the running test may not use this alias; open no connection."""
    if BaseDatabaseWrapper.ensure_connection is not _ensure_connection:
        probe = connections[name].copy()
        probe.connect = lambda: None
        probe.ensure_connection()  # replaced while a test of Django runs: it checks the alias


def release_before_drop() -> None:
    """Close slotwise's connections before a test runner drops the test database, which would fail
    otherwise.
    """
    try:
        creation = connections[alias()].creation
    except SlotwiseError:
        return  # the system check reports it
    drop = creation.destroy_test_db

    @functools.wraps(drop)
    def release_and_drop(*args: object, **options: object) -> object:
        stop()
        return drop(*args, **options)

    creation.destroy_test_db = release_and_drop


def check_slotwise(
    app_configs: object = None, **options: object
) -> list[checks.CheckMessage]:
    """Report what keeps a registry from being built: a wrong setting, an invalid job. Opens no
    connection.
    """
    try:
        registry()
    except InMemory as error:
        return [checks.Warning(str(error), id="slotwise.W001")]
    except SlotwiseError as error:
        return [checks.Error(str(error), id="slotwise.E001")]
    return []
