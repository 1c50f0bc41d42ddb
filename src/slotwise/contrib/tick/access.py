"""Who may request a tick: who sends one of the secrets, or whom the host's own check lets in."""

from __future__ import annotations

import hmac
import inspect
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from slotwise import ConfigurationError

logger = logging.getLogger("slotwise.tick")

#: Gets the headers of a request, their names in lower case; returns whether it may tick.
Check: TypeAlias = Callable[[Mapping[str, str]], bool]

#: The variable that holds the secret; two, separated by a space, while it is changed.
VARIABLE: Final = "SLOTWISE_TICK_SECRET"
#: Characters of a secret, at least.
SHORTEST: Final = 16
#: As many secrets are accepted at a time: the former one and the new one.
MOST: Final = 2
#: What a bearer token may consist of (RFC 6750).
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]+")


class Access:
    """Lets requests in by a bearer secret, or by ``check``; if both are set, by either."""

    def __init__(
        self, secret: str | Sequence[str] | None, check: Check | None
    ) -> None:
        """Raise ConfigurationError if neither is set, or for a secret that is easy to guess."""
        if check is not None and (
            not callable(check) or inspect.iscoroutinefunction(check)
        ):
            raise ConfigurationError(
                "check: pass a plain function of the headers; it runs on a thread"
            )
        self._check = check
        self._secrets = _secrets(secret)
        if not self._secrets and check is None:
            raise ConfigurationError(
                "anybody could start ticks here: pass secret=, or set "
                f"{VARIABLE}, or pass check=, a function of the headers"
            )

    def admits(self, headers: Mapping[str, str]) -> bool:
        """Whether these headers may start a tick. An error of the host's check is logged, and
        means no.
        """
        if self._has_secret(headers.get("authorization", "")):
            return True
        if self._check is None:
            return False
        try:
            return self._check(headers) is True
        except Exception:
            logger.exception("the check of a tick's request failed; it is refused")
            return False

    def _has_secret(self, authorization: str) -> bool:
        """Compare with each secret, in a time that does not depend on where they differ."""
        scheme, _, token = authorization.partition(" ")
        given = token.strip().encode()
        found = [hmac.compare_digest(given, one) for one in self._secrets]
        return scheme.lower() == "bearer" and any(found)


def _secrets(given: str | Sequence[str] | None) -> tuple[bytes, ...]:
    where = "secret" if given is not None else VARIABLE
    if given is None:
        given = os.environ.get(VARIABLE, "")
    found = tuple(given.split() if isinstance(given, str) else given)
    if len(found) > MOST:
        raise ConfigurationError(
            f"{where}: {len(found)} secrets; pass one, or two while it is changed"
        )
    for one in found:
        if len(one) < SHORTEST or _TOKEN.fullmatch(one) is None:
            raise ConfigurationError(
                f"{where}: a secret has at least {SHORTEST} letters, digits or characters of "
                "._~+/=- ; make one: python -c 'import secrets; print(secrets.token_urlsafe())'"
            )
    return tuple(one.encode() for one in found)
