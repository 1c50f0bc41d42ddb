"""Which database of DATABASES has slotwise's tables, and its address."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final
from urllib.parse import quote, urlencode

from slotwise.errors import ConfigurationError

try:
    from django.conf import settings
    from django.db import DEFAULT_DB_ALIAS, connections
except ImportError:
    raise ConfigurationError("this needs Django; run: pip install 'slotwise[django]'") from None

#: Keys of DATABASES' OPTIONS that are Django's own or its connection's, and no parameters of libpq.
_OWN_OPTIONS: Final = frozenset(
    {"pool", "isolation_level", "server_side_binding", "assume_role", "cursor_factory", "context", "prepare_threshold"}
    | {"client_encoding", "autocommit"}
)


class InMemory(ConfigurationError):
    """The database is SQLite in memory: tests that need no jobs may run nevertheless."""


def given_settings() -> Mapping[str, Any]:
    """Return ``settings.SLOTWISE``, with Django's own keys in capitals. Raises ConfigurationError if it is no dict."""
    given = getattr(settings, "SLOTWISE", {})
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"settings.SLOTWISE is {given!r:.80}; write a dictionary, e.g. {{'THREADS': 8}}")
    if wrong := [key for key in given if not isinstance(key, str)]:
        raise ConfigurationError(f"settings.SLOTWISE has the key {wrong[0]!r:.80}; write a string, e.g. 'THREADS'")
    return given


def alias() -> str:
    """Return the alias of the database that has slotwise's tables. Raises ConfigurationError if there is none."""
    given = next((value for key, value in given_settings().items() if key.upper() == "DATABASE"), None)
    return checked_alias(DEFAULT_DB_ALIAS if given is None else given, "settings.SLOTWISE['DATABASE'] is {!r}, which")


def checked_alias(name: object, said: str) -> str:
    """Return an alias of DATABASES. Raises ConfigurationError, which begins with ``said``."""
    if isinstance(name, str) and name in settings.DATABASES:
        return name
    near = get_close_matches(name, settings.DATABASES, n=1) if isinstance(name, str) else []
    cure = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(settings.DATABASES))}"
    raise ConfigurationError(f"{said.format(name)} is no alias in DATABASES; {cure}")


def _in_memory(given: Mapping[str, Any]) -> bool:
    return ":memory:" in str(given["NAME"]) or "mode=memory" in str(given["NAME"])


def database_address(name: str) -> str:
    """Return slotwise's address of a database in DATABASES. Raises ConfigurationError with the cure."""
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
    key = repr([given.get(name) for name in ("HOST", "PORT", "NAME", "USER", "PASSWORD", "OPTIONS")])
    if key not in _addresses:
        _addresses[key] = _postgresql(given)
    return _addresses[key]


#: Addresses by their settings: each use of a client compares them, and a process sees few.
_addresses: dict[str, str] = {}


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


def place() -> dict[str, Any]:
    """Return the settings that locate the tables, without building a registry: for migrations."""
    folded = {key.casefold().replace("-", "_"): value for key, value in given_settings().items()}
    return {name: folded[name] for name in ("table_prefix", "schema") if name in folded}
