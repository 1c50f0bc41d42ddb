"""Locks in Redis, with the keys of ShedLock's Redis provider."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import SplitResult, parse_qsl, urlsplit

from slotwise import ConfigurationError, InvalidSetting
from slotwise.contrib.locks.provider import Grant, named_duration
from slotwise.spi import hide_password

if TYPE_CHECKING:
    from redis import Redis

# The token is a counter beside the key, and at least the server's time: it rises even if the
# counter was evicted or lost with its server. Lua's numbers are doubles; microseconds since 1970
# fit until the year 2255.
_ACQUIRE: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local last = tonumber(redis.call('GET', KEYS[2]) or 0) or 0
local token = string.format('%.0f', math.max(last + 1, now))
if redis.call('GET', KEYS[1]) == ARGV[1] then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
elseif not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
    return false
end
redis.call('SET', KEYS[2], token)
return {token, string.format('%.0f', now)}
"""
_EXTEND: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
_RELEASE: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return 0
end
local time = redis.call('TIME')
local left = math.ceil((ARGV[2] + ARGV[3] - time[1] * 1000000 - time[2]) / 1000)
if left > 0 then
    redis.call('PEXPIRE', KEYS[1], string.format('%.0f', left))
else
    redis.call('DEL', KEYS[1])
end
return 1
"""

#: Options of a URL that concern the way to the server. Others would be ignored or change what a
#: call means.
_OPTIONS: Final = (
    "client_name",
    "db",
    "protocol",
    "socket_keepalive",
    "ssl_ca_certs",
    "ssl_ca_path",
    "ssl_cert_reqs",
    "ssl_certfile",
    "ssl_check_hostname",
    "ssl_keyfile",
    "ssl_min_version",
)
_EXAMPLE: Final = "write redis://user:password@host:6379/0"


class RedisLocks:
    """Locks in a Redis server; a lock provider. Needs ``pip install 'slotwise[redis]'``.

    The key of a lock is ``<key_prefix>:<environment>:<name>``, as ShedLock writes it. ``url``
    begins with ``redis://``, ``rediss://`` or ``unix://``. A call that takes longer than
    ``timeout`` fails. Raises InvalidSetting, and ConfigurationError without the library.
    """

    def __init__(
        self,
        url: str,
        *,
        environment: str = "default",
        key_prefix: str = "job-lock",
        timeout: timedelta | str = "5s",
    ) -> None:
        _check_url(url)
        seconds = named_duration("RedisLocks: timeout", timeout).total_seconds()
        if seconds < 0.01:
            raise InvalidSetting(
                f"timeout={timeout!r} is too short; write at least 10ms"
            )
        for option, value in (
            ("environment", environment),
            ("key_prefix", key_prefix),
        ):
            if value == "":
                raise InvalidSetting(
                    f"RedisLocks: {option} must not be empty; leave it out or name it"
                )
            if not isinstance(value, str) or not value or not value.isprintable():
                raise InvalidSetting(
                    f"{option}={value!r:.60} is not a part of a key; write printable characters"
                )
        self._prefix = f"{key_prefix}:{environment}:"
        self._address = hide_password(url)
        self._client = _client(url, seconds)
        self._acquire, self._extend, self._release = map(
            self._client.register_script, (_ACQUIRE, _EXTEND, _RELEASE)
        )

    def __repr__(self) -> str:
        return f"RedisLocks({self._address!r})"

    def acquire(self, name: str, holder: str, at_most_for: timedelta) -> Grant | None:
        """Take the lock if it is free, has expired, or has this holder already. Return None if
        another one has it.
        """
        key = self._prefix + name
        # The braces place both keys in one hash slot of a cluster.
        with self._telling(name):
            found = self._acquire(
                keys=[key, f"{{{key}}}:token"],
                args=[holder, _milliseconds(at_most_for)],
            )
        if found is None:
            return None
        token, locked_at = cast("list[bytes]", found)
        return Grant(
            name=name, holder=holder, token=int(token), locked_at=int(locked_at)
        )

    def extend(self, grant: Grant, at_most_for: timedelta) -> bool:
        """Set the end to now plus this duration, if the grant's holder has the lock and it has not
        expired.
        """
        with self._telling(grant.name):
            return bool(
                self._extend(
                    keys=[self._prefix + grant.name],
                    args=[grant.holder, _milliseconds(at_most_for)],
                )
            )

    def is_held(self, grant: Grant) -> bool:
        """Return whether the grant's holder has the lock and it has not expired."""
        with self._telling(grant.name):
            return self._client.get(self._prefix + grant.name) == grant.holder.encode()

    def release(self, grant: Grant, at_least_for: timedelta) -> bool:
        """End the lock now, or this long after its acquisition if that is later. Return False if
        not ours.
        """
        span = at_least_for // timedelta(microseconds=1)
        with self._telling(grant.name):
            return bool(
                self._release(
                    keys=[self._prefix + grant.name],
                    args=[grant.holder, grant.locked_at, span],
                )
            )

    @contextmanager
    def _telling(self, name: str) -> Iterator[None]:
        """Raise ConfigurationError for a refusal that no repetition cures."""
        from redis import AuthenticationError, ResponseError
        from redis.exceptions import AskError, ClusterError

        try:
            yield
        except (
            AskError,
            ClusterError,
        ) as error:  # it asks for another node: no other client would be refused
            raise ConfigurationError(
                f"{self._address}: it is a node of a Redis Cluster, which refuses "
                f"the key {self._prefix + name!r}; "
                "name a server that is no cluster"
            ) from error
        except (AuthenticationError, ResponseError) as error:
            reason = str(error).splitlines()[0]
            key = f"{self._prefix}{name}"
            cures = {
                "WRONGTYPE": f"the key {key!r} or its token is not a string; delete it or "
                "choose another key_prefix",
                "DB index is out of range": "choose a database that the server has",
                "NOPERM": f"grant the user the keys {self._prefix}* and {{{self._prefix}*",
                "NOAUTH": "write user and password into the address",
                "HELLO must be called": "write user and password into the address",
                "Authentication required": "write user and password into the address",
                "WRONGPASS": "correct user or password in the address",
                "invalid username-password": "correct user or password in the address",
            }
            cure = next(
                (cure for words, cure in cures.items() if words in reason), None
            )
            if cure is None:
                raise
            raise ConfigurationError(f"{self._address}: {reason}; {cure}") from error

    def close(self) -> None:
        """Close its connections; the next call opens new ones."""
        self._client.connection_pool.disconnect()


def _client(url: str, seconds: float) -> Redis:
    try:
        from redis import ConnectionError as Disconnected
        from redis import Redis, RedisError
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError:
        raise ConfigurationError(
            "Redis locks need the redis library; run: pip install 'slotwise[redis]'"
        ) from None
    # One repetition: the server may have closed a kept connection. After a timeout there is none.
    retry = Retry(NoBackoff(), 1, supported_errors=(Disconnected,))
    try:
        client = Redis.from_url(
            url, socket_timeout=seconds, socket_connect_timeout=seconds, retry=retry
        )
        pool = client.connection_pool
        pool.connection_class(
            **pool.connection_kwargs
        )  # checks the values of options, and does not connect
    except (ValueError, TypeError, RedisError) as error:
        raise InvalidSetting(
            f"{hide_password(url)}: {str(error).rstrip('.')}; {_EXAMPLE}"
        ) from None
    return client


def _check_url(url: str) -> None:
    shown = hide_password(url) if isinstance(url, str) and url.strip() else repr(url)
    try:
        parts = urlsplit(url)
        pairs = parse_qsl(
            parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)
        )
    except (AttributeError, TypeError, ValueError):
        raise InvalidSetting(
            f"{shown:.200} is not the address of a Redis server; {_EXAMPLE}"
        ) from None
    if parts.scheme not in ("redis", "rediss", "unix") or parts.fragment:
        raise InvalidSetting(
            f"{shown:.200} is not the address of a Redis server; {_EXAMPLE}"
        )
    if unknown := next((name for name, _ in pairs if name not in _OPTIONS), None):
        raise InvalidSetting(
            f"{shown:.200}: unknown option {unknown!r}; known are {', '.join(_OPTIONS)}"
        )
    if parts.scheme != "unix":
        _check_server(parts, shown)


def _check_server(parts: SplitResult, shown: str) -> None:
    try:
        _ = parts.port
    except ValueError:
        raise InvalidSetting(
            f"{shown:.200}: the port is not a number up to 65535; {_EXAMPLE}"
        ) from None
    database = parts.path.removeprefix("/")
    if database and not database.isdigit():
        raise InvalidSetting(
            f"{shown:.200}: the database {database!r} is not a number; {_EXAMPLE}"
        )


def _milliseconds(span: timedelta) -> int:
    return math.ceil(span / timedelta(milliseconds=1))
