"""What the doctor finds, and from where on it minds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from slotwise.inspect import Value


class Severity(StrEnum):
    """How bad a finding is: an error stops work or soon will, a warning costs, a note is good to
    know.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Value):
    """A condition. ``check`` names it for programs, ``evidence`` is what was seen, and ``cure`` is
    what to do.
    """

    check: str
    severity: Severity
    evidence: str
    cure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """From where on a condition is reported."""

    #: A snapshot that is held for longer, or over more transactions.
    snapshot: timedelta = timedelta(hours=1)
    snapshot_age: int = 1_000_000
    #: Dead rows of a table, if they are also more than its live ones.
    dead_rows: int = 10_000
    #: Bytes of an index that is ``bloat`` times as large as its entries need.
    index_bytes: int = 10_000_000
    bloat: float = 4.0
    #: The age of the oldest transaction id; at two billion the server stops.
    transaction_age: int = 1_000_000_000
    #: The part of the server's connections that are in use, or that the fleet may take.
    connections: float = 0.8
    #: The difference of a worker's clock from the database's.
    drift: timedelta = timedelta(seconds=1)
    #: A job that is paused for longer is forgotten.
    forgotten: timedelta = timedelta(days=30)
    #: A job that was planned longer ago should have succeeded once.
    never: timedelta = timedelta(days=1)
