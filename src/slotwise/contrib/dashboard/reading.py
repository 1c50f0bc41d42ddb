"""What one page reads: its parts, each of which may be missing, while the rest is shown."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar
from zoneinfo import ZoneInfo

from slotwise import DatabaseProblem, DatabaseUnreachable, SlotwiseError
from slotwise.contrib.dashboard.access import Refused, Visitor
from slotwise.contrib.dashboard.source import Source
from slotwise.inspect import Inspection

logger = logging.getLogger("slotwise.dashboard")

Result = TypeVar("Result")

#: Years that rows may have; beyond them, arithmetic with instants fails.
_FIRST_YEAR, _LAST_YEAR = 1900, 9000
MIDNIGHT = {"hour": 0, "minute": 0, "second": 0, "microsecond": 0}


@dataclass(slots=True, kw_only=True)
class Reading:
    """A request that is being answered: the reads, the database's time, and what is missing."""

    source: Source
    visitor: Visitor
    given: Mapping[str, str]
    inspect: Inspection
    now: datetime
    zone: ZoneInfo
    #: How far a replica is behind; None where the primary is read.
    delay: timedelta | None = None
    #: The shard that is read, of an application with several.
    shard: str | None = None
    #: When the oldest of the parts was read that are kept for a while; None without any.
    counted: datetime | None = None
    #: Parts that could not be read, with the reason.
    missing: dict[str, str] = field(default_factory=dict)

    @classmethod
    def begin(
        cls, source: Source, visitor: Visitor, given: Mapping[str, str]
    ) -> Reading:
        """Read the database's time. Raises DatabaseProblem while it is away."""
        inspect = source.inspect
        now = inspect.now()
        zone = source.renewed.get("zone", inspect.common_zone, now).value
        return cls(
            source=source,
            visitor=visitor,
            given=given,
            inspect=inspect,
            now=now,
            zone=zone,
            delay=source.replica_delay(),
            shard=source.shard(),
        )

    def part(self, name: str, read: Callable[[], Result]) -> Result | None:
        """Return what ``read`` returns; None if it took too long or failed, and the page says so.

        Raises DatabaseUnreachable, and what slotwise rejects, such as an unknown name.
        """
        try:
            return read()
        except DatabaseUnreachable:
            raise
        except DatabaseProblem as error:
            reason = in_one_line(error)
            logger.warning("the part %s of a page could not be read: %s", name, reason)
            self.missing[name] = reason
            return None
        except SlotwiseError:
            raise
        except Exception:  # a row that another program has written
            logger.exception("the part %s of a page failed", name)
            self.missing[name] = "it failed; the log says why"
            return None

    def lines(self, name: str, read: Callable[[], list[Result]]) -> list[Result]:
        """As ``part``, of a list: what could not be read is empty."""
        found = self.part(name, read)
        return [] if found is None else found

    def kept(
        self, name: str, read: Callable[[], Result], of: object = None
    ) -> Result | None:
        """As ``part``, of the whole cluster: what was read up to half a minute ago, for all
        visitors. ``of`` is what else the read depends on.
        """
        renewed = self.source.renewed
        found = self.part(name, lambda: renewed.get((name, of), read, self.now))
        if found is None:
            return None
        self.counted = min(self.counted or found.at, found.at)
        return found.value

    def kept_lines(
        self, name: str, read: Callable[[], list[Result]], of: object = None
    ) -> list[Result]:
        """As ``kept``, of a list: what could not be read is empty."""
        found = self.kept(name, read, of)
        return [] if found is None else found

    def text(self, name: str) -> str:
        """Return a value of the address. Raises Refused (400) without it."""
        found = self.given.get(name, "")
        if not found.strip():
            raise Refused(f"the address needs {name}=", 400)
        return found

    def instant(self, name: str) -> datetime | None:
        """Return an instant of the address, in UTC unless it says otherwise. Raises Refused
        (400).
        """
        text = self.given.get(name)
        if not text:
            return None
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            raise Refused(
                f"{name}={text!r:.60} is no instant of ISO 8601", 400
            ) from None
        if not _FIRST_YEAR <= found.year <= _LAST_YEAR:
            raise Refused(
                f"{name}={text!r:.60}: the years are {_FIRST_YEAR} to {_LAST_YEAR}",
                400,
            )
        return found if found.tzinfo else found.replace(tzinfo=self.zone)

    @property
    def midnight(self) -> datetime:
        """The last midnight of the zone that times are shown in."""
        return self.now.astimezone(self.zone).replace(**MIDNIGHT)  # type: ignore[arg-type]

    @property
    def today(self) -> timedelta:
        """How long today has lasted."""
        return self.now - self.midnight


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a page shows: its template, and the data that ``.json`` has."""

    template: str
    title: str
    data: Mapping[str, object]
    #: For the template alone.
    shown: Mapping[str, object] = field(default_factory=dict)
    status: int = 200


def in_one_line(error: SlotwiseError) -> str:
    """Return an error's message without line breaks."""
    return " ".join(str(error).split())
