"""Database addresses: each spelling becomes one `sqlalchemy.URL`, for psycopg 3 or the driver of a
lodger.

No message quotes an address that cannot be parsed, because any part of it may be a password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import ModuleType
from urllib.parse import unquote, unquote_plus

from sqlalchemy import URL

from slotwise.errors import DriverMissing, InvalidSetting
from slotwise.model.plugged_in import plugged_in

NO_ADDRESS = (
    "no database was named; give --database-url, set SLOTWISE_DATABASE_URL or DATABASE_URL, "
    "or write database-url in slotwise.toml"
)
EXAMPLE = "write postgresql://user@host/database, mysql://user@host/database or sqlite:///file.db"
POSTGRESQL = "postgresql+psycopg"
#: MariaDB and MySQL, which a lodger knows.
MYSQL = "mysql"

_HOST = r"(?:\[[0-9A-Fa-f:.]+(?:%\w+)?\]|(?:[\w.~-]|%[0-9A-Fa-f]{2})*)(?::\d*)?"
_PAIR = r"[\w.-]+=[^&]*"
# A password may hold @, /, ? and # as they are: it ends at the first @ that a whole address
# follows.
_POSTGRESQL_URL = re.compile(
    r"(?:jdbc:)?postgres(?:ql)?(?:\+\w+)?://"
    r"(?:(?P<user>[^:/?]*?)(?::(?P<password>.*?))?@)?"
    rf"(?P<hosts>{_HOST}(?:,{_HOST})*)"
    r"(?:/(?P<database>[^/?@]*))?"
    rf"(?:\?(?P<query>(?:{_PAIR}(?:&{_PAIR})*)?))?",
    re.DOTALL | re.IGNORECASE,
)
_HOST_AND_PORT = re.compile(r"(?P<host>\[.*\]|[^:]*|.*:.*:.*?)(?::(?P<port>\d*))?")
_SCHEME = re.compile(r"(?:jdbc:)?(?P<name>[A-Za-z][\w.-]*)(?:\+\w+)?:")
_LIBPQ_STRING = re.compile(r"\s*\w+\s*=")
#: How addresses begin that lodgers read.
_OF_LODGERS = ("sqlite", "mysql", "mariadb")
#: The databases that a message names; another word before :// may be anything.
_UNSUPPORTED = frozenset(
    {
        "cockroachdb",
        "db2",
        "duckdb",
        "h2",
        "mongodb",
        "mssql",
        "oracle",
    }
)
# What other drivers call libpq's options.
_SPELLED_ELSEWHERE = {
    "ssl": "sslmode",
    "database": "dbname",
    "dbName": "dbname",
    "username": "user",
}
_NO_SCHEMA = "remove it, and name the schema of slotwise's tables with --schema or SLOTWISE_SCHEMA"
_POOLER = "behind a pooler, set pooler = true, or SLOTWISE_POOLER=true; and remove it"
_POOL = "remove it, and set pool_size, or SLOTWISE_POOL_SIZE"
_TIMEOUT = "remove it, and write connect_timeout, or options=-c statement_timeout=20s"
#: Options that Prisma, JDBC, SQLAlchemy, asyncpg, Npgsql, Go and hosts of databases put into
#: addresses, with what to write in their place.
OPTIONS_OF_OTHERS = {
    **dict.fromkeys(
        ("schema", "currentSchema", "search_path", "searchpath"), _NO_SCHEMA
    ),
    **dict.fromkeys(
        (
            "pgbouncer",
            "prepareThreshold",
            "preparedStatementCacheQueries",
            "prepared_statement_cache_size",
            "prepared_statements",
            "statement_cache_size",
            "statement_cache_capacity",
            "default_query_exec_mode",
            "supa",
            "workaround",
        ),
        _POOLER,
    ),
    **dict.fromkeys(
        (
            "connection_limit",
            "pool_timeout",
            "pool_size",
            "pool_max_conns",
            "pool_min_conns",
            "max_overflow",
            "max_connections",
            "min_size",
            "max_size",
            "maxPoolSize",
        ),
        _POOL,
    ),
    **dict.fromkeys(
        (
            "connectTimeout",
            "loginTimeout",
            "socketTimeout",
            "socket_timeout",
            "command_timeout",
            "statement_timeout",
            "lock_timeout",
            "timeout",
        ),
        _TIMEOUT,
    ),
    "ApplicationName": "write application_name",
    "sslaccept": "write sslmode=verify-full, or sslmode=require",
    "sslfactory": "write sslmode=verify-full, or sslmode=require",
    "uselibpqcompat": "remove it: this is libpq",
    "tcpKeepAlive": "write keepalives=1",
    "charset": "remove it: sessions speak UTF8",
    "client_encoding": "remove it: sessions speak UTF8",
}
_QUOTES = ('"', "'", "`")


def database_url(text: str | None) -> URL:
    """Return the address as a URL. Raise `InvalidSetting`, which never quotes it, or
    `DriverMissing`.
    """
    text = (text or "").strip()
    if not text:
        raise InvalidSetting(NO_ADDRESS)
    if text[0] in _QUOTES:
        raise _not_understood(
            "it begins with a quote, which is part of the value, as docker --env-file leaves it; "
            "write the address without quotes"
        )
    scheme = _SCHEME.match(text)
    kind = scheme["name"].lower() if scheme else ""
    if kind in ("postgres", "postgresql"):
        return _from_postgresql_url(text)
    if kind in _OF_LODGERS:
        found: URL = plugged_in("slotwise.addresses", kind)(text)
        return found
    if not scheme and _LIBPQ_STRING.match(text):
        return _from_libpq_string(text)
    if kind in _UNSUPPORTED:
        raise InvalidSetting(f"{kind} databases are not supported; {EXAMPLE}")
    raise _not_understood("it begins with neither postgresql:// nor sqlite:///")


def connect_arguments(url: URL) -> dict[str, str]:
    """Return the libpq keywords of a PostgreSQL URL made here."""
    named = {
        "user": url.username,
        "password": url.password,
        "host": url.host,
        "dbname": url.database,
    }
    arguments = {key: str(value) for key, value in named.items() if value}
    if url.port is not None:
        arguments["port"] = str(url.port)
    return arguments | {
        key: value if isinstance(value, str) else ",".join(value)
        for key, value in url.query.items()
    }


def psycopg() -> ModuleType:
    """Return the driver, imported at first use. Raise `DriverMissing` without libpq."""
    try:
        import psycopg
    except ImportError:
        raise DriverMissing from None
    return psycopg


def _not_understood(why: str) -> InvalidSetting:
    return InvalidSetting(f"the database address is not understood: {why}; {EXAMPLE}")


def _from_postgresql_url(text: str) -> URL:
    match = _POSTGRESQL_URL.fullmatch(text)
    if match is None:
        raise _not_understood(
            "a port is a number, and special characters in a name or password are percent-encoded"
        )
    named = {
        "user": match["user"],
        "password": match["password"],
        "dbname": match["database"],
    }
    arguments = {key: unquote(value) for key, value in named.items() if value}
    return _url(arguments | _hosts(match["hosts"]) | _options(match["query"] or ""))


def _options(query: str) -> dict[str, str]:
    """The options after the `?`; SQLAlchemy's `host=a:1&host=b:2` is a list of hosts."""
    pairs = [pair.partition("=")[::2] for pair in query.split("&") if pair]
    hosts = [unquote(value) for key, value in pairs if key == "host"]
    # libpq leaves a plus sign alone; between words of `options` it can only mean a space.
    options = {
        key: unquote_plus(value) if key == "options" else unquote(value)
        for key, value in pairs
    }
    return (
        options | _hosts(",".join(hosts))
        if hosts and "port" not in options
        else options
    )


def _hosts(text: str) -> dict[str, str]:
    """`[::1]:5433,b` as libpq wants it: hosts and ports, each list as long as the other."""
    pairs = [_HOST_AND_PORT.fullmatch(part) for part in text.split(",")]
    hosts = ",".join(unquote(pair["host"].strip("[]")) for pair in pairs if pair)
    ports = ",".join(pair["port"] or "" for pair in pairs if pair)
    return {"host": hosts, "port": ports if ports.strip(",") else ""}


def _from_libpq_string(text: str) -> URL:
    driver = psycopg()
    from psycopg.conninfo import conninfo_to_dict

    try:
        options = conninfo_to_dict(text)
    except driver.ProgrammingError:  # its message may quote a piece of the password
        raise _not_understood(
            "each option must be key=value, and a value with spaces must be quoted: '…'"
        ) from None
    return _url(
        {key: str(value) for key, value in options.items() if value is not None}
    )


def _url(options: Mapping[str, str]) -> URL:
    """One host stands in the URL itself; sockets and lists of hosts in its query, as libpq reads
    them.
    """
    rest = {
        _SPELLED_ELSEWHERE.get(key, key): value
        for key, value in options.items()
        if value
    }
    host = rest.get("host", "")
    port = rest.get("port", "")
    if re.search(r"[;=\s]", host) or not re.fullmatch(r"[\d,]*", port):
        # Another driver's string, as Host=h;Pwd=x: libpq would take all of it for a host, and
        # quote it.
        raise _not_understood("a host holds no ; = or space, and a port is a number")
    if rest.get("sslmode", "").lower() == "true":
        rest["sslmode"] = "require"
    # a URL drops a password without a user
    username = rest.pop("user", "" if "password" in rest else None)
    made = URL.create(
        POSTGRESQL,
        username=username,
        password=rest.pop("password", None),
        database=rest.pop("dbname", None),
    )
    if re.search("[,/@]", host) or "," in port:
        return made.set(query=rest)
    rest = {key: value for key, value in rest.items() if key not in ("host", "port")}
    return made.set(host=host or None, port=int(port) if port else None, query=rest)
