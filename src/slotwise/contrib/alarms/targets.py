"""Where messages go: a signed webhook, e-mail, Slack's format, or a callable.

``send`` blocks, and raises where the message was not accepted. Each target is tried on a thread of
its own, with a limit of time that no receiver can extend.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import smtplib
import ssl
import string
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from email.message import EmailMessage
from email.utils import formatdate
from typing import Final, Protocol
from urllib.parse import quote, urlsplit

from slotwise import InvalidSetting
from slotwise.contrib.alarms.messages import SIGNATURE, TIMESTAMP, Message, signature

#: How long a receiver may be silent, in seconds.
PATIENCE: Final = 10.0
_AGENT: Final = "slotwise-alarms/1"
_PORTS: Final = {"plain": 25, "starttls": 587, "tls": 465}


#: Of printable ASCII, what a header has as it is.
_OF_HEADERS: Final = string.punctuation.replace("%", "")


class Target(Protocol):
    """Receives messages. ``name`` is unique among the targets of a process, and lasts: deliveries
    are kept by it.
    """

    @property
    def name(self) -> str: ...

    def send(self, message: Message) -> None:
        """Deliver a message. Raises if it was not accepted; it is then tried again."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the message to an address that nobody has named."""

    def redirect_request(self, *_: object) -> None:
        return None


class Rejected(OSError):
    """The target was reached, and does not accept this message; it may accept others."""


#: Statuses of 4xx that are about the target's state, not about the message.
_LATER: Final = frozenset({408, 425, 429})


def post(url: str, body: bytes, headers: Mapping[str, str]) -> None:
    """Send a POST. Raises OSError unless the answer's status is 2xx; Rejected if the receiver
    does not want this message.
    """
    request = urllib.request.Request(url, body, {"User-Agent": _AGENT, **headers})
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(request, timeout=PATIENCE):
            return
    except urllib.error.HTTPError as error:
        with error:
            is_rejected = 400 <= error.code < 500 and error.code not in _LATER
            kind = Rejected if is_rejected else OSError
            raise kind(f"HTTP status {error.code}") from None
    except OSError:
        raise
    except http.client.HTTPException as error:  # its text may have the address in it
        raise OSError(f"no answer of HTTP: {type(error).__name__}") from None


def checked_url(what: str, url: str, *, has_key: bool = False) -> str:
    """Return an address of HTTP; ``has_key``: with a key before its host. Raise InvalidSetting,
    without the address: it may be secret.
    """
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_good = is_good and parts.port != 0
    except (ValueError, AttributeError, TypeError):
        is_good = False
    if not is_good:
        raise InvalidSetting(
            f"{what}: the url must be an address with http:// or https://, a host, and a "
            "port in digits if any"
        )
    if not (url.isascii() and url.isprintable()) or " " in url:
        raise InvalidSetting(
            f"{what}: the url has a blank, a control character or one beyond ASCII; "
            "percent-encode it"
        )
    if "@" in parts.netloc and not has_key:
        raise InvalidSetting(
            f"{what}: the url has a user or password before its host; remove it"
        )
    return url


class Webhook:
    """POSTs each message as JSON. With a ``secret``, ``X-Slotwise-Signature`` is the HMAC-SHA256
    of ``X-Slotwise-Timestamp``, a dot, and the body; ``verify`` checks it.

    ``Idempotency-Key`` is the message's id, percent-encoded. Redirects are refused.
    """

    def __init__(
        self, url: str, *, secret: str | None = None, name: str = "webhook"
    ) -> None:
        """Raise InvalidSetting."""
        self.name = name
        self._url = checked_url(f"target {name}", url)
        self._secret = secret

    def __repr__(self) -> str:
        return f"Webhook({self.name!r})"

    def send(self, message: Message) -> None:
        body = json.dumps(message.as_json(), ensure_ascii=False).encode()
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": _in_header(message.id),
        }
        if self._secret:
            headers[TIMESTAMP] = timestamp = str(int(time.time()))
            headers[SIGNATURE] = signature(self._secret, timestamp, body)
        post(self._url, body, headers)


def _in_header(id: str) -> str:
    """Return an id, which has the name of a job in it, in the characters of a header."""
    return quote(id, safe=_OF_HEADERS)


class Slack:
    """POSTs each message as ``{"text": …}``: for Slack, Mattermost, Rocket.Chat, Discord's
    ``/slack`` addresses and others.
    """

    def __init__(self, url: str, *, name: str = "slack") -> None:
        """Raise InvalidSetting."""
        self.name = name
        self._url = checked_url(f"target {name}", url)

    def __repr__(self) -> str:
        return f"Slack({self.name!r})"

    def send(self, message: Message) -> None:
        sign = ":red_circle:" if message.is_open else ":large_green_circle:"
        text = f"{sign} *{_escaped(message.title)}*\n{_escaped(message.text)}"
        body = json.dumps({"text": text}, ensure_ascii=False).encode()
        post(self._url, body, {"Content-Type": "application/json"})


def _escaped(text: str) -> str:
    """Escape what Slack would read as a link or a mention."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Email:
    """Sends each message as an e-mail, by SMTP.

    ``security`` is ``starttls`` (the default, port 587), ``tls`` (port 465), or ``plain`` (port
    25, for a relay on this host). A repetition has the same ``Message-ID``, and the end of an
    incident refers to its begin.
    """

    def __init__(
        self,
        host: str,
        *,
        sender: str,
        to: list[str],
        port: int | None = None,
        user: str | None = None,
        password: str | None = None,
        security: str = "starttls",
        name: str = "email",
    ) -> None:
        """Raise InvalidSetting."""
        if security not in _PORTS:
            raise InvalidSetting(
                f"target {name}: security={security!r:.40}: write {', '.join(_PORTS)}"
            )
        if isinstance(to, str) or not to or not all("@" in one for one in to):
            raise InvalidSetting(
                f'target {name}: to must be a list, as ["me@example.org"]'
            )
        self.name = name
        self._host = host
        self._port = port or _PORTS[security]
        self._sender = sender
        self._to = to
        self._user = user
        self._password = password
        self._security = security

    def __repr__(self) -> str:
        return f"Email({self.name!r})"

    def send(self, message: Message) -> None:
        with self._connected() as server:
            if self._user:
                server.login(self._user, self._password or "")
            server.send_message(self._letter(message))

    def _connected(self) -> smtplib.SMTP:
        trust = ssl.create_default_context()
        if self._security == "tls":
            return smtplib.SMTP_SSL(
                self._host, self._port, timeout=PATIENCE, context=trust
            )
        server = smtplib.SMTP(self._host, self._port, timeout=PATIENCE)
        if self._security == "starttls":
            server.starttls(context=trust)
        return server

    def _letter(self, message: Message) -> EmailMessage:
        letter = EmailMessage()
        letter["From"] = self._sender
        letter["To"] = ", ".join(self._to)
        letter["Subject"] = " ".join(message.title.split())
        letter["Date"] = formatdate(usegmt=True)
        thread, _, event = message.id.rpartition(":")
        letter["Message-ID"] = _letter_id(thread, event)
        if not message.is_open:
            letter["References"] = _letter_id(thread, "opened")
        letter.set_content(f"{message.text}\n\nid: {message.id}\n")
        return letter


def _letter_id(thread: str, event: str) -> str:
    """Return an id that is short, and of the characters that are allowed there."""
    digest = hashlib.sha256(thread.encode()).hexdigest()[:24]
    return f"<{digest}.{event}@slotwise.invalid>"


class Call:
    """Calls a function of yours with each message. What it raises counts as a failed delivery."""

    def __init__(self, function: Callable[[Message], object], *, name: str) -> None:
        self.name = name
        self._function = function

    def __repr__(self) -> str:
        return f"Call({self.name!r})"

    def send(self, message: Message) -> None:
        self._function(message)


def secret_of(text: str, place: str) -> str:
    """Return a value; ``env:NAME`` is the variable of that name. Raise InvalidSetting."""
    if not text.startswith("env:"):
        return text
    name = text.removeprefix("env:")
    found = os.environ.get(name, "")
    if not found:
        raise InvalidSetting(f"{place}: the variable {name} is not set")
    return found
