"""What to write for a text of another scheduler."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from slotwise import Cron, Daily, Every, InvalidSchedule, InvalidSetting, Once
from slotwise.spi import parse_duration, zone_named

#: Reads a text with a zone: the text of a schedule, or None if the text is not of this notation.
Reader: TypeAlias = Callable[[str, str], str | None]

LONGEST: Final = 255


class NoCounterpart(Exception):
    """The text is of the notation, and no schedule has its slots; the message says what to do."""


def hint(text: str, tz: str = "UTC") -> str | None:
    """Return what to write for a text that is no schedule; None if it is of no known notation.

    ``tz`` is the zone of local times that name none.
    """
    text = " ".join(text.split())
    if not text or len(text) > LONGEST:
        return None
    try:
        found = _translated(text, tz)
    except NoCounterpart as error:
        return str(error)
    return found and f"write {found}"


def _translated(text: str, tz: str) -> str | None:
    """The schedule of the first notation that has such a text. Raises NoCounterpart."""
    for read in _READERS:
        with suppress(InvalidSchedule, InvalidSetting, ValueError, OverflowError):
            found = read(text, tz)
            if found is not None:
                return found
    return None


# -- words and macros


_WORDS: Final = {
    "@quarterly": "0 0 1 1,4,7,10 *",
    "@semiannually": "0 0 1 1,7 *",
    "@minutely": "* * * * *",
    "@every_minute": "* * * * *",
    "@secondly": "* * * * * *",
    "minutely": "* * * * *",
    "hourly": "0 * * * *",
    "daily": "0 0 * * *",
    "midnight": "0 0 * * *",
    "nightly": "0 0 * * *",
    "noon": "0 12 * * *",
    "weekly": "0 0 * * MON",
    "monthly": "0 0 1 * *",
    "quarterly": "0 0 1 1,4,7,10 *",
    "semiannually": "0 0 1 1,7 *",
    "yearly": "0 0 1 1 *",
    "annually": "0 0 1 1 *",
}
_NEVER: Final = (
    "none",
    "null",
    "never",
    "off",
    "disabled",
    "@never",
    "@manually",
    "manual",
)
_REFUSED: Final = {
    "@once": "it runs once, so write ONCE|2026-12-31T22:00:00Z, or schedule a one-time task",
    "@continuous": "write FIXED_DELAY|1s, which runs again one second after each end",
    "@after": "write FIXED_DELAY|1s, or let the first task schedule the other as a follow-up",
    "rrule": "a rule of iCalendar has no counterpart; write cron fields, or "
    "ANY(CRON|…; CRON|…) for several",
    "months": "months and years differ in length; write cron fields, as 0 0 1 * *",
    "solar": "the sun has no counterpart; write a time of day, as DAILY|18:00|Europe/Vienna",
    "crontab": "write its fields in the order minute, hour, day of month, month, day of week; "
    "each that is left out is *",
}
_MONTHS: Final = re.compile(
    r"p[0-9.]+[ym].*|((rate\()?(@?every )?([0-9]+ )?(months?|years?)\)?)"
)
_WORKDAY: Final = re.compile(r"[^ ]+(?: [^ ]+){2} (L-[0-9]+W) [^ ]+ ")
_SUN: Final = re.compile(r"solar|sunrise|sunset|solar_noon|(dawn|dusk)(_[a-z]+)?")


def _word(text: str, tz: str) -> str | None:
    word = text.lower()
    if word in _NEVER:
        return "-"
    return str(Cron(_WORDS[word], tz)) if word in _WORDS else None


def _without_counterpart(text: str, tz: str) -> str | None:
    word = re.split(r"[ (:;=<]", text.lower().lstrip("<"))[0]
    if _SUN.fullmatch(word):
        word = "solar"
    if word in ("freq", "dtstart"):
        word = "rrule"
    if _MONTHS.fullmatch(text.lower()):
        word = "months"
    if found := _WORKDAY.search(text.upper()):
        raise NoCounterpart(
            f"Quartz's {found[1]} has no counterpart; write other days"
        )
    if word in _REFUSED:
        raise NoCounterpart(_REFUSED[word])
    return None


# -- durations


_UNITS: Final = (
    (r"w|weeks?", "w"),
    (r"d|days?", "d"),
    (r"h|hrs?|hours?", "h"),
    (r"m|mins?|minutes?", "m"),
    (r"s|secs?|seconds?", "s"),
    (r"ms|msecs?|milliseconds?", "ms"),
)
_SPAN: Final = re.compile(r"(?:[0-9.]+ ?[a-zµ]+ ?)+")
_PART: Final = re.compile(r"([0-9]+)(?:\.([0-9]+))? ?([a-z]+)")
_REPEATED: Final = re.compile(r"R([0-9]*)/(?:([^P/]+)/)?(P[^/]+)", re.IGNORECASE)


def _duration(text: str, tz: str) -> str | None:
    body = re.sub(
        r"^(@every|every)[ _]+|^rate ?\((.*)\)$", r"\2", text, flags=re.I
    ).strip()
    if re.fullmatch(r"second|minute|hour|day|week", body.lower()):
        body = f"1 {body}"
    return _every(_span(body))


def _every(span: timedelta, anchor: str | None = None) -> str:
    found = Every(span) if anchor is None else Every(span, anchor=anchor)
    return str(found).removesuffix("|1970-01-01T00:00:00Z")


def _span(text: str) -> timedelta:
    """Read `5m`, `PT5M`, `90 seconds`, and `1h 30min`. Raises InvalidSetting."""
    with suppress(InvalidSetting):
        return parse_duration(text.upper() if text[:1] in "pP" else text)
    if not _SPAN.fullmatch(text.lower()):
        raise InvalidSetting(text)
    return sum((_part(match) for match in _PART.finditer(text.lower())), timedelta(0))


def _part(match: re.Match[str]) -> timedelta:
    for names, unit in _UNITS:
        if re.fullmatch(names, match[3]):
            whole = parse_duration(f"{match[1]}{unit}")
            share = float(f"0.{match[2] or 0}")
            return whole + share * parse_duration(f"1{unit}")
    raise InvalidSetting(match[0])


def _time_span(text: str, tz: str) -> str | None:
    """`02:00:00` is a time of day to systemd, and a duration to .NET and Python."""
    match = re.fullmatch(r"(?:([0-9]+)\.)?([0-9]{1,2}):([0-9]{2}):([0-9]{2})", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    every = _every(timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds))
    if days:
        return every
    daily = Daily(f"{hours:02}:{minutes:02}:{seconds:02}", tz=tz)
    return f"{daily} for a time of day, and {every} for a duration"


def _number(text: str, tz: str) -> str | None:
    if not re.fullmatch(r"[0-9]{1,9}(\.0*)?", text):
        return None
    return _every(timedelta(seconds=float(text)))


def _repeated(text: str, tz: str) -> str | None:
    match = _REPEATED.fullmatch(text)
    if match is None:
        return None
    if match[1]:
        raise NoCounterpart(
            "a number of repetitions has none; write EVERY|… .between(…)"
        )
    return _every(_span(match[3]), match[2])


def _instant(text: str, tz: str) -> str | None:
    match = re.fullmatch(
        r"(?:@at |at ?\()?([0-9]{4}-[0-9-]+T[^ )]+)\)?", text, re.IGNORECASE
    )
    if match is None:
        return None
    instant = datetime.fromisoformat(match[1])
    local = instant.tzinfo is None
    return str(Once(instant.replace(tzinfo=zone_named(tz)) if local else instant))


# -- cron with a zone, a year, or other names


def _zoned(text: str, tz: str) -> str | None:
    """`CRON_TZ=Asia/Tokyo 5 9 * * *`, `TZ=…`, and `5 9 * * * Asia/Tokyo`."""
    match = _ZONE_FIRST.fullmatch(text) or _ZONE_LAST.fullmatch(text)
    if match is None:
        return None
    try:
        zone = zone_named(match["zone"]).key
    except InvalidSchedule as error:
        raise NoCounterpart(str(error)) from None
    return _cron(match["fields"], zone)


_ZONE_FIRST: Final = re.compile(
    r"(?:CRON_)?TZ ?= ?(?P<quote>[\"']?)(?P<zone>[^ \"']+)(?P=quote) (?P<fields>.+)",
    re.I,
)
_ZONE: Final = re.compile(r"[A-Za-z]+/[A-Za-z_/+-]+[0-9]*|UTC")
_ZONE_LAST: Final = re.compile(
    rf"(?P<fields>@[a-z]+|[^ ]+(?: [^ ]+){{4,5}}) (?P<zone>{_ZONE.pattern})"
)


def _cron(text: str, tz: str) -> str | None:
    """The text of cron fields, or of what is to be written for them."""
    with suppress(InvalidSchedule):
        return str(Cron(text, tz))
    return _translated(text, tz)


def _eventbridge(text: str, tz: str) -> str | None:
    """`cron(minutes hours day month weekday year)`; inside, as Quartz without seconds."""
    match = re.fullmatch(r"cron ?\((.*)\)", text, re.IGNORECASE)
    fields = (match[1] if match else text).split()
    if match is None and not _has_year_last(fields):
        return None
    if len(fields) != 6:
        return _cron(" ".join(fields), tz)
    found = Cron.quartz(" ".join(["0", *fields]), tz)
    if not isinstance(found, Cron):
        return str(found)
    return str(Cron(" ".join(found.texts[1:]).replace("?", "*"), tz))


def _has_year_last(fields: Sequence[str]) -> bool:
    if len(fields) != 6:
        return False
    if "?" in (fields[2], fields[4]):
        return True
    if not re.fullmatch(r"[0-9]{4}([-,/][0-9,/-]+)?", fields[5]):
        return False
    if re.search("[0-9]", fields[4]):
        raise NoCounterpart("with a year last, day 1 is Sunday or Monday; write names")
    return True


def _quartz(text: str, tz: str) -> str | None:
    return str(Cron.quartz(text, tz)) if len(text.split()) in (6, 7) else None


def _seconds_last(text: str, tz: str) -> str | None:
    fields = text.split()
    return (
        str(Cron(" ".join([fields[5], *fields[:5]]), tz)) if len(fields) == 6 else None
    )


_LONG: Final = re.compile(
    r"\b(SUN|MON|TUES|TUE|WEDNES|WED|THURS|THUR|THU|FRI|SATUR|SAT)(?:DAYS?)?\b"
    r"|\b(JANUARY|FEBRUARY|MARCH|APRIL|JUNE|JULY|AUGUST|SEPTEMBER|SEPT|OCTOBER|NOVEMBER|DECEMBER)\b"
)


def _names(text: str, tz: str) -> str | None:
    """Long names of days and months, and the `$` of pg_cron for the last day."""
    fields = text.upper().replace("$", "L").replace("..", "-").split()
    named = [_LONG.sub(lambda match: match[0][:3], field) for field in fields]
    if [*named] == text.upper().split() or len(named) not in (5, 6):
        return None
    return str(Cron(" ".join(named), tz))


# -- systemd


_DAYS: Final = r"[A-Za-z]{3,9}(?:(?:,|-|\.\.)[A-Za-z]{3,9})*"
#: `Mon..Fri *-*-1..7 09:00:00 Europe/Vienna`: each part but one may be missing.
_ON_CALENDAR: Final = re.compile(
    rf"(?P<days>{_DAYS}(?![^ ]))? ?"
    r"(?:(?:(?P<year>[^-~ ]+)-)?(?P<month>[^-~: ]+)(?P<mark>[-~])(?P<day>[^-~: ]+)(?![^ ]))? ?"
    r"(?:(?P<hour>[0-9*][^: ]*):(?P<minute>[0-9*][^: ]*)(?::(?P<second>[0-9*][^: ]*))?)?"
    rf"(?: (?P<zone>{_ZONE.pattern}))?"
)


def _on_calendar(text: str, tz: str) -> str | None:
    text = text.removeprefix("OnCalendar=")
    word, _, zone = text.partition(" ")
    if word.lower() in _WORDS and (not zone or _ZONE.fullmatch(zone)):
        return str(Cron(_WORDS[word.lower()], zone or tz))
    match = _ON_CALENDAR.fullmatch(text)
    if match is None:
        return None
    part = {
        name: found for name, found in match.groupdict().items() if found is not None
    }
    *clock, day, month, weekday = _fields_of(part)
    if clock[0] == "0":
        clock.pop(0)
    expression = " ".join((*clock, day, month, weekday))
    zone = part.get("zone", tz)
    if "*" in (day, weekday):
        found = Cron(expression, zone)
    else:
        found = Cron(expression, zone, day_rule="and")
    years = _field(part.get("year", "*"))
    return str(found) if years == "*" else _within_years(found, years)


def _fields_of(part: Mapping[str, str]) -> list[str]:
    """Seconds first, as cron writes them."""
    day = part.get("day", "*")
    weekday = _LONG.sub(lambda name: name[0][:3], part.get("days", "*").upper())
    return [
        *(_field(part.get(name, "0")) for name in ("second", "minute", "hour")),
        _from_end(day) if part.get("mark") == "~" else _field(day, 1),
        _field(part.get("month", "*"), 1),
        weekday.replace("..", "-"),
    ]


def _field(text: str, low: int = 0) -> str:
    items = []
    for item in text.split(","):
        plain = re.sub(r"\b0+(?=[0-9])", "", item.replace("..", "-"))
        items.append(re.sub(rf"^{low}/", "*/", plain))
    return ",".join(items)


def _from_end(text: str) -> str:
    if not re.fullmatch(r"[0-9]{1,2}", text):
        raise NoCounterpart(f"~{text} has none; write each day, as L,L-1,L-2")
    return f"L-{int(text) - 1}" if int(text) > 1 else "L"


def _within_years(schedule: Cron, years: str) -> str:
    first, _, last = years.partition("-")
    if not (first.isdecimal() and (last or first).isdecimal()):
        raise NoCounterpart(f"the years {years} have none; write one BETWEEN for each")
    zone = schedule.zone
    return str(
        schedule.between(
            datetime(int(first), 1, 1, tzinfo=zone),
            datetime(int(last or first) + 1, 1, 1, tzinfo=zone),
        )
    )


# -- English


_AT: Final = re.compile(
    r"(?:every )?(day|weekday|[a-z]+day)s?(?:(?:,? at)? ([0-9]{1,2}):([0-9]{2}))?",
    re.IGNORECASE,
)


def _english(text: str, tz: str) -> str | None:
    """`every monday at 09:00`."""
    match = _AT.fullmatch(text)
    if match is None:
        return None
    day = match[1].upper()
    days = {"DAY": "*", "WEEKDAY": "MON-FRI"}.get(day, day[:3])
    return str(Cron(f"{int(match[3] or 0)} {int(match[2] or 0)} * * {days}", tz))


#: In their order: a text may be of several notations.
_READERS: Final[tuple[Reader, ...]] = (
    _without_counterpart,
    _word,
    _instant,
    _repeated,
    _time_span,
    _duration,
    _number,
    _zoned,
    _eventbridge,
    _names,
    _quartz,
    _seconds_last,
    _english,
    _on_calendar,
)
