"""Addresses of MariaDB and MySQL: each spelling becomes one URL for PyMySQL.

No message quotes an address that cannot be parsed, because any part of it may be a password.
"""

from __future__ import annotations

import re

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from slotwise import InvalidSetting

DRIVER = "mysql+pymysql"
_EXAMPLE = "write mysql://user:password@host/database, or mariadb://…"
_SCHEME = re.compile(r"(?:jdbc:)?(?:mysql|mariadb)(?:\+\w+)?://", re.IGNORECASE)
#: Options of an address that reach the driver.
_OPTIONS = frozenset(
    {
        "unix_socket",
        "ssl_ca",
        "ssl_cert",
        "ssl_key",
        "ssl_key_password",
        "ssl_check_hostname",
        "ssl_disabled",
        "ssl_verify_cert",
        "ssl_verify_identity",
    }
)
#: What other drivers and tools write, with what to write in its place.
_OPTIONS_OF_OTHERS = {
    "charset": "remove it: sessions speak utf8mb4",
    "characterEncoding": "remove it: sessions speak utf8mb4",
    "useUnicode": "remove it: sessions speak utf8mb4",
    "serverTimezone": "remove it: sessions are in UTC",
    "connectionTimeZone": "remove it: sessions are in UTC",
    "useSSL": "write ssl_ca=FILE, and ssl_verify_identity=true",
    "sslMode": "write ssl_ca=FILE, and ssl_verify_identity=true",
    "ssl_mode": "write ssl_ca=FILE, and ssl_verify_identity=true",
    "ssl-mode": "write ssl_ca=FILE, and ssl_verify_identity=true",
    "localSocket": "write unix_socket=PATH",
    "socket": "write unix_socket=PATH",
    "pool_size": "remove it, and set pool_size, or SLOTWISE_POOL_SIZE",
    "connection_limit": "remove it, and set pool_size, or SLOTWISE_POOL_SIZE",
    "connect_timeout": "remove it: it follows from heartbeat_interval",
    "read_timeout": "remove it: it follows from heartbeat_interval",
    "write_timeout": "remove it: it follows from heartbeat_interval",
}


def mysql_url(text: str) -> URL:
    """Return an address of MariaDB or MySQL as a URL. Raise `InvalidSetting`, which never quotes
    it.
    """
    rest = _SCHEME.sub("", text, count=1)
    if rest == text:
        raise _not_understood("mysql: and mariadb: are followed by //")
    try:
        url = make_url(f"{DRIVER}://{rest}")
    except (ArgumentError, ValueError):
        raise _not_understood(
            "a port is a number, and special characters in a name or password are "
            "percent-encoded"
        ) from None
    if "," in (url.host or ""):
        raise _not_understood("one host can be named; more need a proxy or a router")
    url = _with_login_of_query(url)
    if not url.database:
        raise _not_understood("it names no database")
    _refuse_unknown(url)
    return url.set(port=url.port or 3306)


def _with_login_of_query(url: URL) -> URL:
    """Return the URL with user and password that stand in its query, as JDBC has them."""
    given = {name: url.query.get(name) for name in ("user", "password")}
    url = url.difference_update_query(given)
    if isinstance(user := given["user"], str):
        url = url.set(username=user)
    if isinstance(password := given["password"], str):
        url = url.set(password=password)
    return url


def _refuse_unknown(url: URL) -> None:
    """A name may be a piece of a password with an & in it: it is shown only if others have it."""
    for place, name in enumerate(url.query, start=1):
        if name in _OPTIONS:
            continue
        is_known = name in _OPTIONS_OF_OTHERS
        option = f"option {name!r}" if is_known else f"option {place}"
        cure = _OPTIONS_OF_OTHERS.get(name, "remove it")
        raise InvalidSetting(
            f"{option} of the database address is unknown to PyMySQL here; {cure}"
        )


def _not_understood(why: str) -> InvalidSetting:
    return InvalidSetting(f"the database address is not understood: {why}; {_EXAMPLE}")
