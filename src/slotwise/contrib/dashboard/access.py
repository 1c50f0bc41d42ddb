"""Who may see and operate: roles, the host's name, and the origin of what is submitted."""

from __future__ import annotations

import hashlib
import hmac
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from slotwise import ConfigurationError
from slotwise.contrib.dashboard.exchange import Request, Token

NO_ROLE: Final = (
    "this dashboard has no role yet; pass role= to Dashboard: 'viewer', 'operator', 'admin', "
    "or a function of the request that returns one of them, a Visitor, or None"
)
NOT_ALLOWED: Final = "you may not see this dashboard"
NO_SECRET: Final = (
    "operations are off; pass secret= to Dashboard, the same in all processes, "
    "or set SLOTWISE_DASHBOARD_SECRET"
)
#: This host as a browser on it spells it. Another name that resolves to the loopback is an attack
#: by DNS.
_LOOPBACK: Final = re.compile(
    r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.IGNORECASE
)


#: Headers that proxies add.
_OF_PROXIES: Final = frozenset(
    {"forwarded", "via", "x-real-ip", "cf-connecting-ip", "true-client-ip"}
)


class Role(StrEnum):
    """What a visitor may do: a viewer reads, an operator also requests operations, and an admin
    also sees data of tasks and deletes.
    """

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def includes(self, other: Role) -> bool:
        """Whether this role may do what ``other`` may."""
        order = list(Role)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """Who asks: ``name`` is the author of operations in the audit. Raises ValueError for a role
    that does not exist.
    """

    role: Role | str
    name: str = "dashboard"

    def __post_init__(self) -> None:
        object.__setattr__(self, "role", Role(self.role))

    def may(self, role: Role) -> bool:
        """Whether the visitor may do what this role may."""
        return Role(self.role).includes(role)


RoleOf: TypeAlias = Callable[[Request], "Visitor | Role | str | None"]


class Refused(Exception):
    """A request that is not answered; the message says why."""

    def __init__(self, message: str, status: int = 403) -> None:
        super().__init__(message)
        self.status = status


class Access:
    """The rules of one dashboard."""

    def __init__(
        self,
        role: RoleOf | Role | str | None,
        secret: str | None,
        *,
        is_local: bool = False,
    ) -> None:
        """Raise ConfigurationError for a role that does not exist, or an async function."""
        if inspect.iscoroutinefunction(role):
            raise ConfigurationError(
                "Dashboard(role=…): the function is async; pass a plain one, which runs on a thread"
            )
        self._role = role if role is None or callable(role) else _role(role)
        self._secret = secret
        self._is_local = is_local

    def visitor(self, request: Request) -> Visitor:
        """Return who asks. Raise Refused for a request that is not to be answered, and ValueError
        if the function returns a role that does not exist.
        """
        if self._is_local:
            _check_local(request.headers)
        if self._role is None:
            raise Refused(NO_ROLE)
        found = self._role(request) if callable(self._role) else self._role
        if found is None:
            raise Refused(NOT_ALLOWED)
        return found if isinstance(found, Visitor) else Visitor(role=found)

    def token(self, request: Request, visitor: Visitor, hour: int) -> Token | None:
        """Return what the forms of this visitor carry in this hour since 1970; None if operations
        are off.
        """
        if not visitor.may(Role.OPERATOR):
            return None
        if request.token is not None:
            return request.token
        if self._secret is None:
            return None
        return Token(value=self._signed(visitor, hour))

    def check_form(self, request: Request, visitor: Visitor, hour: int) -> None:
        """Raise Refused unless a page of this dashboard has submitted this form, in this hour or
        the last.
        """
        check_origin(request.headers)
        if request.token is not None:
            return
        if self._secret is None:
            raise Refused(NO_SECRET)
        given = request.form.get("token", "")
        valid = [self._signed(visitor, at) for at in (hour, hour - 1)]
        if not any(hmac.compare_digest(given.encode(), one.encode()) for one in valid):
            raise Refused("this form is too old, or not ours; reload the page")

    def _signed(self, visitor: Visitor, hour: int) -> str:
        said = f"{visitor.name}\n{visitor.role}\n{hour}".encode()
        key = (self._secret or "").encode()
        return hmac.new(key, said, hashlib.sha256).hexdigest()


def check_role(visitor: Visitor, role: Role) -> None:
    """Raise Refused unless the visitor may do what this role may."""
    if not visitor.may(role):
        raise Refused(f"this needs the role {role}; you have {visitor.role}")


def check_origin(headers: Mapping[str, str]) -> None:
    """Raise Refused unless a page of this dashboard has submitted the form.

    Browsers send Sec-Fetch-Site to secure addresses and to the loopback, and Origin to all. No
    page's Referrer-Policy allows an Origin here, so HTTP to other hosts is refused.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        is_ours = site == "same-origin"
    else:
        origin = urlsplit(headers.get("origin", ""))
        is_ours = bool(origin.netloc) and origin.netloc == headers.get("host")
    if not is_ours:
        raise Refused("this form was not submitted by a page of this dashboard")


def _check_local(headers: Mapping[str, str]) -> None:
    host = headers.get("host", "")
    if _LOOPBACK.fullmatch(host) is None:
        raise Refused(
            f"the host {host!r:.100} is not this machine; open the dashboard as 127.0.0.1"
        )
    for header in headers:
        if header in _OF_PROXIES or header.startswith("x-forwarded-"):
            raise Refused(
                "this dashboard has no login, so it refuses what a proxy forwards; "
                "mount it into an application with role="
            )


def _role(given: object) -> Role:
    try:
        return Role(str(given))
    except ValueError:
        raise ConfigurationError(
            f"Dashboard(role=…): {given!r:.60} is no role; write viewer, operator or admin"
        ) from None
