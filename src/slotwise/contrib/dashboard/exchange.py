"""A request and its response as values: every host translates its own into these."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl

#: The longest form that is read, in bytes.
LONGEST_BODY: Final = 64 * 1024
#: Sent with every answer. Nothing is stored, framed, or loaded from elsewhere, and no page
#: contains a script or a style.
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What shows that a page of this dashboard has submitted a form: a hidden field."""

    field: str = "token"
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a browser asks for.

    ``path`` begins below the mount ``root``. Names of ``headers`` are in lower case. ``host`` is
    the host's own request: the ASGI scope, the WSGI environ, or Django's HttpRequest. ``token``
    is that of a host that checks forms itself, and has checked this one.
    """

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    root: str = ""
    host: object = None
    token: Token | None = None
    #: Whether the host serves server-sent events, under ``/events``.
    has_streams: bool = False

    @property
    def given(self) -> dict[str, str]:
        """The values of the query by name; of one that is repeated, the last. Empty ones are left
        out.
        """
        return _values(self.query)

    @property
    def form(self) -> dict[str, str]:
        """The values of a submitted form by name."""
        return _values(self.body.decode("utf-8", "replace"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """An answer; ``HEADERS`` are sent in addition to its own."""

    status: int = 200
    body: bytes = b""
    content_type: str = "text/html; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)

    def all_headers(self) -> list[tuple[str, str]]:
        """Return the headers to send, in order."""
        own = {
            "Content-Type": self.content_type,
            "Content-Length": str(len(self.body)),
        }
        return list({**HEADERS, **own, **self.headers}.items())


def text(status: int, message: str) -> Response:
    """Return a plain message."""
    body = f"{message}\n".encode()
    return Response(status=status, body=body, content_type="text/plain; charset=utf-8")


def document(value: object, status: int = 200) -> Response:
    """Return a JSON document."""
    body = json.dumps(value, ensure_ascii=False).encode()
    return Response(status=status, body=body, content_type="application/json")


def see_other(address: str) -> Response:
    """Redirect a submitted form to the page that shows its result."""
    return Response(status=303, headers={"Location": address})


def _values(text: str) -> dict[str, str]:
    try:
        found = parse_qsl(text, max_num_fields=200)
    except ValueError:  # more fields than any form has
        return {}
    return {name: value.replace("\x00", "") for name, value in found}
