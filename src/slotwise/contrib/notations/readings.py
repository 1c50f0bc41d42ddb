"""How Quartz, Spring, croniter and Debian's cron read an expression that slotwise reads in its own
way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from slotwise import Cron, InvalidSchedule, Schedule, parse_schedule
from slotwise.spi import Arranged

_OPEN_STEP: Final = re.compile(r"(?<![0-9A-Z-])([0-9]|[A-Z]{3})/")
_STARRED_STEP: Final = re.compile(r"\*/([0-9]+)")
_ANY: Final = ("*", "?")


def other_readings(schedule: Schedule | str) -> list[str]:
    """Return a sentence for each scheduler that reads a cron expression of a schedule, or of its
    text, otherwise: with the text that has that scheduler's slots.

    Only where an expression may come from there: six fields, `?`, or two restricted day fields.
    Raise InvalidSchedule for a text that is none.
    """
    known = parse_schedule(schedule) if isinstance(schedule, str) else schedule
    found: list[str] = []
    for leaf in known.last.leaves():
        cron = leaf.schedule if isinstance(leaf, Arranged) else leaf
        if isinstance(cron, Cron):
            found += _readings(cron)
    return list(dict.fromkeys(found))


def _readings(schedule: Cron) -> Iterator[str]:
    day, weekday = schedule.texts[3], schedule.texts[5]
    has_seconds = len(schedule.expression.split()) == 6
    is_restricted = day not in _ANY and weekday not in _ANY
    if not is_restricted and (has_seconds or "?" in (day, weekday)):
        yield from _quartz_reading(schedule)
    if has_seconds:
        yield from _spring_readings(schedule)
        if "?" not in (day, weekday):
            yield from _croniter_reading(schedule)
    elif is_restricted and schedule.day_rule == "or" and "*" in (day[0], weekday[0]):
        vixie = Cron(schedule.expression, schedule.zone, day_rule="vixie")
        yield f"If it is from Debian's cron, where both days must match, write: {vixie}"


def _quartz_reading(schedule: Cron) -> Iterator[str]:
    try:
        quartz = Cron.quartz(" ".join(schedule.texts), schedule.zone)
    except InvalidSchedule as error:
        if "counterpart" in str(
            error
        ):  # else Quartz refuses it, so it is not from there
            yield f"{error}."
        return
    if isinstance(quartz, Cron) and _rules(quartz) != _rules(schedule):
        yield f"If it is from Quartz, where day 1 is Sunday and gaps are skipped, write: {quartz}"


def _rules(schedule: Cron) -> object:
    has_changes = schedule.zone.utcoffset(None) is None
    return (
        _picked(schedule),
        has_changes and (schedule.fixed, schedule.gap, schedule.fold),
    )


def _spring_readings(schedule: Cron) -> Iterator[str]:
    """Both days must match; steps of weekdays end with 7, Sunday; until 5.3 days count from 0."""
    *times, day, month, weekday = schedule.texts
    weekday = _OPEN_STEP.sub(r"\1-7/", weekday)
    old_day = _STARRED_STEP.sub(r"\1-31/\1", day)
    since_5_3 = [*times, day, month, weekday.replace("*/", "1-7/")]
    before = [*times, old_day, month, weekday]
    seen = [_picked(schedule)]
    for version, texts in (("", since_5_3), (" before 5.3", before)):
        with suppress(InvalidSchedule):
            found = Cron(" ".join(texts), schedule.zone, day_rule="and")
            if _picked(found) not in seen:
                seen.append(_picked(found))
                yield f"If it is from Spring{version}, with its rules for days, write: {found}"


def _croniter_reading(schedule: Cron) -> Iterator[str]:
    fields = schedule.expression.split()
    with suppress(InvalidSchedule):
        found = Cron(" ".join([fields[5], *fields[:5]]), schedule.zone)
        if _picked(found) != _picked(schedule):
            yield f"If it is from croniter, where the last field has the seconds, write: {found}"


def _picked(schedule: Cron) -> object:
    """The times and the days that an expression picks, however it is written."""
    return [list(values) for values in schedule.values[:3]], schedule.dates
