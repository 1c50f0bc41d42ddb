"""Pages as HTML: Jinja2 with autoescape, and how instants, durations and numbers are written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final
from urllib.parse import quote, urlencode
from zoneinfo import ZoneInfo

import jinja2
from markupsafe import Markup

from slotwise.contrib.dashboard.access import Role, Visitor
from slotwise.contrib.dashboard.drawing import drawn_marks, drawn_strip, seconds_of
from slotwise.contrib.dashboard.exchange import Request, Token
from slotwise.contrib.dashboard.operations import KINDS
from slotwise.contrib.dashboard.reading import Page, Reading
from slotwise.inspect import RECURRING, describe_schedule
from slotwise.spi import error_summary, short_duration

#: The pages that every page links to, in order, with the key that opens each.
NAVIGATION: Final = (
    ("/", "Today", "t"),
    ("/timeline", "Timeline", "l"),
    ("/jobs", "Jobs", "j"),
    ("/tasks", "Tasks", "k"),
    ("/load", "Load", "o"),
    ("/workers", "Workers", "w"),
    ("/calendars", "Calendars", "c"),
    ("/audit", "Audit", "a"),
    ("/database", "Database", "d"),
)


#: An instant as explanations have it.
_INSTANT: Final = re.compile(
    r"\b[1-9]\d{3}-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-5]\d(?:\.\d{1,6})?(?:Z|[+-][01]\d:[0-5]\d)"
)


@dataclass(frozen=True, slots=True)
class Moments:
    """How instants are written: by the clocks of a zone, with UTC as their title."""

    now: datetime
    zone: ZoneInfo

    def __call__(self, instant: datetime | None) -> str:
        """Write an instant; of today, the time alone."""
        if instant is None:
            return "–"
        local = instant.astimezone(self.zone)
        is_today = local.date() == self.now.astimezone(self.zone).date()
        said = seconds_of(local)[11:] if is_today else seconds_of(local)
        return _time(instant, f"{seconds_of(instant.astimezone(UTC))} UTC", said)

    def full(self, instant: datetime) -> Markup:
        """Write an instant with its date and the zone's offset."""
        said = f"{instant.astimezone(self.zone):%Y-%m-%d %H:%M:%S %Z}"
        return _time(instant, f"{seconds_of(instant.astimezone(UTC))} UTC", said)

    def told(self, sentence: str) -> Markup:
        """Write a sentence, with the instants in it by the clocks of the zone."""
        said = Markup("")
        end = 0
        for found in _INSTANT.finditer(sentence):
            with suppress(ValueError):  # such as the 30th of February
                instant = self.full(datetime.fromisoformat(found[0]))
                said += Markup("{}").format(sentence[end : found.start()]) + instant
                end = found.end()
        return said + Markup("{}").format(sentence[end:])

    def ago(self, instant: datetime | None) -> str:
        """Write how long ago an instant was, or in how long it will be, with its time as title."""
        if instant is None:
            return "–"
        passed = self.now - instant
        if abs(passed) < timedelta(seconds=1):
            passed = timedelta(0)
        said = (
            f"{short_duration(passed)} ago"
            if passed >= timedelta(0)
            else f"in {short_duration(-passed)}"
        )
        title = f"{instant.astimezone(self.zone):%Y-%m-%d %H:%M:%S %Z}"
        return _time(instant, title, said)


def _time(instant: datetime, title: str, said: str) -> Markup:
    """Write an instant. What zones call themselves is from the time zone database; the rest are
    digits: nothing needs to be escaped, which takes ten times as long.
    """
    when = instant.astimezone(UTC).isoformat()
    return Markup(f'<time datetime="{when}" title="{title}">{said}</time>')


def number(value: int) -> str:
    """Write a number with a comma between thousands."""
    return f"{value:,}"


def size(count: int) -> str:
    """Write a number of bytes in the unit that leaves up to four digits."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"


class Rendering:
    """The templates. Nothing that a row contains is HTML: each value is escaped."""

    def __init__(self) -> None:
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader("slotwise.contrib.dashboard"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "span": short_duration,
            "number": number,
            "size": size,
            "summary": error_summary,
            "schedule": describe_schedule,
        }
        self._templates.globals |= {
            "recurring": RECURRING,
            "navigation": NAVIGATION,
            "draw": drawn_marks,
            "draw_strip": drawn_strip,
        }

    def main(
        self, request: Request, page: Page, reading: Reading, token: Token | None
    ) -> str:
        """Return the part of a page that changes with the data."""
        values = {
            **_addresses(request),
            **page.data,
            **page.shown,
            "kinds": KINDS,
            "at": Moments(reading.now, reading.zone),
            "missing": reading.missing,
            "counted": reading.counted,
            "title": page.title,
            "token": token,
            "is_admin": reading.visitor.may(Role.ADMIN),
        }
        return self._templates.get_template(page.template).render(values)

    def whole(
        self,
        request: Request,
        visitor: Visitor,
        page: Page,
        reading: Reading,
        main: str,
    ) -> str:
        """Return a page with its navigation; ``main`` is what ``main`` has returned."""
        values = {
            **_addresses(request),
            "title": page.title,
            "now": reading.now,
            "delay": reading.delay,
            "shard": reading.shard,
            "at": Moments(reading.now, reading.zone),
            "zone": str(reading.zone),
            "visitor": visitor,
            "main": Markup(main),
        }
        return self._templates.get_template("layout.html").render(values)

    def away(self, request: Request, visitor: Visitor, reason: str) -> str:
        """Return the page that is shown while the database is away."""
        values = {
            **_addresses(request),
            "title": "No database",
            "now": None,
            "delay": None,
            "shard": None,
            "zone": "",
            "visitor": visitor,
        }
        inner = self._templates.get_template("away.html").render(reason=reason)
        return self._templates.get_template("layout.html").render(
            values, main=Markup(inner)
        )


def link(root: str, path: str, **given: object) -> str:
    """Return an address of the dashboard; values that are None are left out."""
    kept = {name: str(value) for name, value in given.items() if value is not None}
    return f"{quote(root)}{path}{'?' if kept else ''}{urlencode(kept)}"


def _addresses(request: Request) -> Mapping[str, object]:
    query = f"?{request.query}" if request.query else ""
    return {
        "link": partial(link, request.root),
        "path": request.path,
        "has_streams": request.has_streams,
        "json": f"{quote(request.root)}{json_path(request.path)}{query}",
    }


def json_path(path: str) -> str:
    """Return where a page's data is."""
    return "/today.json" if path == "/" else f"{path}.json"
