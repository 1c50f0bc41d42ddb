"""What a target receives: one message for the begin of an incident, and one for its end."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from slotwise import ConfigurationError
from slotwise.contrib.alarms.incidents import OPENED, Incident
from slotwise.inspect import Value
from slotwise.spi import format_duration

TIMESTAMP: Final = "X-Slotwise-Timestamp"
SIGNATURE: Final = "X-Slotwise-Signature"
_VERSION: Final = "v1="
_SECOND: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(Value):
    """One message. ``event`` is ``opened`` or ``closed``.

    ``id`` is the same each time that the message is sent: a receiver that has seen it ignores the
    repetition.
    """

    id: str
    event: str
    kind: str
    name: str
    summary: str
    opened: datetime
    closed: datetime | None = None

    @property
    def is_open(self) -> bool:
        return self.event == OPENED

    @property
    def title(self) -> str:
        """One line, as for a subject."""
        about = self.name or "the cluster"
        if self.is_open:
            return f"slotwise: {self.kind} of {about}"
        return f"slotwise: over: {self.kind} of {about}"

    @property
    def text(self) -> str:
        """A sentence for people; of an end, also how long the incident lasted."""
        if self.is_open or self.closed is None:
            return self.summary
        lasted = self.closed - self.opened
        lasted -= lasted % _SECOND
        return f"Over after {format_duration(lasted)}: {self.summary}"


def message_of(incident: Incident, event: str) -> Message:
    """Return the message about the begin or the end of an incident."""
    opened = incident.opened.astimezone(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    parts = (incident.kind, incident.name, str(incident.number), opened, event)
    return Message(
        id=":".join(part for part in parts if part),
        event=event,
        kind=incident.kind,
        name=incident.name,
        summary=incident.summary,
        opened=incident.opened,
        closed=None if event == OPENED else incident.closed,
    )


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Return the HMAC-SHA256 of timestamp and body, as ``X-Slotwise-Signature`` has it."""
    signed = timestamp.encode() + b"." + body
    return _VERSION + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def verify(
    secret: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    now: datetime,
    tolerance: timedelta = timedelta(minutes=5),
) -> None:
    """Check a received webhook: its signature, and that its timestamp is recent.

    ``headers`` by name, in any case. ``now`` is the receiver's time. Raises ConfigurationError.
    """
    found = {name.lower(): value for name, value in headers.items()}
    timestamp = found.get(TIMESTAMP.lower(), "")
    given = found.get(SIGNATURE.lower(), "")
    if not hmac.compare_digest(
        signature(secret, timestamp, body).encode(), given.encode("utf-8", "replace")
    ):
        raise ConfigurationError("the signature of the message is wrong")
    age = abs(now.timestamp() - int(timestamp))
    if age > tolerance.total_seconds():
        raise ConfigurationError(
            f"the message was signed {age:.0f} s ago, or ahead; it may be a repetition"
        )
