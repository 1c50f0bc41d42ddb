"""Schedules in local time that go around business calendars."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NoReturn
from zoneinfo import ZoneInfo

from slotwise.errors import InvalidSchedule
from slotwise.schedules.base import Schedule
from slotwise.schedules.business.business_days import Arrangement, LeftOut, Numbered, Roll, Rolled, arranged
from slotwise.schedules.business.calendar import Calendar, calendar_name
from slotwise.schedules.local_time import LocalSchedule, one_of
from slotwise.schedules.timeline import Line, LineSchedule, Unbound
from slotwise.schedules.walker import Walk

MOST_CALENDARS = 8


class Arranged(LineSchedule, ABC):
    """A Cron or Daily whose days are arranged around calendars; they are bound, or mere names until then."""

    __slots__ = ("_given", "schedule")
    schedule: LocalSchedule
    _given: tuple[Calendar | str, ...]

    def _prepare(self, schedule: LocalSchedule, given: tuple[Calendar | str, ...]) -> None:
        for calendar in given:
            calendar_name(calendar.name if isinstance(calendar, Calendar) else calendar)
        self._set(schedule=schedule, _given=given)
        if len(self.calendars) != len(given) or len(given) > MOST_CALENDARS:
            raise InvalidSchedule(f"{len(given)} calendars: each once, and at most {MOST_CALENDARS}")

    @property
    def calendars(self) -> Mapping[str, Calendar | None]:
        return {one.name: one for one in self._given if isinstance(one, Calendar)} | {
            one: None for one in self._given if isinstance(one, str)
        }

    def bind(self, name: str, calendars: Mapping[str, Calendar] | None = None) -> Schedule:
        schedule = self.schedule.bind(name, calendars)
        assert isinstance(schedule, LocalSchedule)
        return self._on(schedule, tuple(_found(one, calendars or {}) for one in self._given))

    @abstractmethod
    def _on(self, schedule: LocalSchedule, given: tuple[Calendar | str, ...]) -> Schedule:
        """The same for a schedule and calendars that are bound."""

    @property
    def local_zone(self) -> ZoneInfo | None:
        return self.schedule.zone

    def _refuse_calendar(self) -> NoReturn:
        raise InvalidSchedule(f"{self} goes around calendars already; name all of them at once")

    def _line_by(self, arrangement: Arrangement) -> Line:
        """Its line. Raises InvalidSchedule if nothing is left of the schedule."""
        walk, bound = self.schedule.walk, tuple(one for one in self._given if isinstance(one, Calendar))
        if isinstance(walk, Unbound):
            return walk
        if len(bound) < len(self._given):
            names = ", ".join(name for name, found in self.calendars.items() if found is None)
            return Unbound(f"calendar {names} is not bound: its days are in the database")
        days = arranged(walk.pattern.days, arrangement, bound or (_MONDAY_TO_FRIDAY,))
        if not days:
            raise InvalidSchedule(f"{self} never fires: none of its days is left")
        return walk.on(days)


class Excluding(Arranged):
    """Around the days that calendars do not work on; made by `schedule.excluding("AT", roll=…)`."""

    __slots__ = ("_running", "roll")
    roll: Roll
    _running: Schedule

    def __init__(self, schedule: LocalSchedule, calendars: tuple[Calendar | str, ...], roll: Roll) -> None:
        one_of("roll", roll, Roll)
        if not calendars:
            raise InvalidSchedule('excluding takes calendars, as excluding("AT", roll="following")')
        self._prepare(schedule, calendars)
        self._set(roll=roll, _text=f"EXCLUDING({schedule}; {', '.join(map(str, calendars))}; {roll})")
        line = self._line_by(LeftOut() if roll in ("skip", "drop") else Rolled(roll))
        is_flagged = roll == "skip" and isinstance(line, Walk)
        self._set(_line=schedule.line if is_flagged else line)
        self._set(_running=Excluding(schedule, calendars, "drop") if is_flagged else self)

    @property
    def running(self) -> Schedule:
        return self._running

    def _on(self, schedule: LocalSchedule, given: tuple[Calendar | str, ...]) -> Schedule:
        return Excluding(schedule, given, self.roll)


class BusinessDay(Arranged):
    """On the n-th business day of a month; made by `schedule.nth_business_day(n, "AT")`."""

    __slots__ = ("n",)
    n: int

    def __init__(self, schedule: LocalSchedule, n: int, calendars: tuple[Calendar | str, ...]) -> None:
        if not isinstance(n, int) or isinstance(n, bool) or not 1 <= abs(n) <= 23:
            raise InvalidSchedule(f"business day {n!r:.20}: 1–23, or -1 to -23 from the month's end")
        self._prepare(schedule, calendars)
        listed = f"; {', '.join(map(str, calendars))}" if calendars else ""
        self._set(n=n, _text=f"BUSINESS_DAY({schedule}; {n}{listed})")
        self._set(_line=self._line_by(Numbered(n)))

    def _on(self, schedule: LocalSchedule, given: tuple[Calendar | str, ...]) -> Schedule:
        return BusinessDay(schedule, self.n, given)


_MONDAY_TO_FRIDAY = Calendar(name="MON-FRI")


def _found(calendar: Calendar | str, known: Mapping[str, Calendar]) -> Calendar:
    """The calendar as it is known now; one that is bound stays if it is not known."""
    name = calendar if isinstance(calendar, str) else calendar.name
    if name in known:
        return known[name]
    if isinstance(calendar, Calendar):
        return calendar
    raise InvalidSchedule(f"calendar {name} is not among those given: {', '.join(known) or 'none'}")
