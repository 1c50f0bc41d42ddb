"""Say what a slot owes to a deploy, or to the absence of workers, and how a job fares."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import date, datetime, timedelta

from slotwise.errors import InvalidSchedule
from slotwise.explain.sentences import ROUNDING, see_stack, when
from slotwise.model.durations import short_duration
from slotwise.model.records import TICK
from slotwise.model.vocabulary import Reason, SlotState
from slotwise.schedules.calendars import parse_calendar
from slotwise.schedules.description import describe_schedule, zone_of
from slotwise.schedules.text import readable
from slotwise.store.operations.transaction import AuditEntry
from slotwise.store.reading.facts import Facts
from slotwise.store.reading.histories import DeployInfo, WorkerLife
from slotwise.store.reading.rates import JobRates
from slotwise.store.slots.history import LEFT

#: Reasons of slots that no worker has started in time.
_MISSED = (Reason.COLLAPSED, Reason.LATE)
#: A shorter run needs no look, however short the others are.
LONG = timedelta(seconds=10)


def changed(facts: Facts) -> Iterator[str]:
    """Name the last deploy that took this slot away."""
    for deploy in facts.deploys:
        if _has_slot(deploy.former, facts.slot):
            yield changed_by(deploy)
            return


def changed_by(deploy: DeployInfo) -> str:
    by = f"revision {deploy.revision}" if deploy.revision else deploy.worker
    return (
        f"The schedule was changed from {_described(deploy.former)} to "
        f"{_described(deploy.schedule)} by {by} at {when(deploy.at)}."
    )


def _described(text: str | None) -> str:
    schedule = readable(text)
    return str(text) if schedule is None else describe_schedule(schedule)


def _has_slot(text: str | None, slot: datetime) -> bool:
    schedule = readable(text)
    if schedule is None or schedule.from_end:
        return False
    return schedule.next_after(slot - TICK) == slot


def day_off(facts: Facts) -> Iterator[str]:
    """Say which calendars exclude the day of a slot, what day it is, and who added it."""
    schedule = facts.schedule
    if schedule is None:
        return
    day = facts.slot.astimezone(zone_of(schedule)).date()
    for name, calendar in sorted(schedule.calendars.items()):
        if calendar is None or calendar.is_business_day(day):
            continue
        if day not in calendar.days:
            yield f"{day:%A} belongs to the weekend of the calendar {name}."
        else:
            yield _listed(name, day, _added(facts, name, day))


def _listed(name: str, day: date, added: AuditEntry | None) -> str:
    told = f"{day:%A}, {day}, is a day of the calendar {name}"
    if added is None:
        return f"{told}."
    names = added.arguments.get("names")
    title = names.get(str(day)) if isinstance(names, dict) else None
    what = f" ({title})" if title else ""
    note = f": {added.note}" if added.note else ""
    return f"{told}{what}, which {added.author} added at {when(added.at)}{note}."


def _added(facts: Facts, name: str, day: date) -> AuditEntry | None:
    """Return the operation since which a calendar has this day; None if the audit has none."""
    found = None
    for operation in facts.operations:
        text = str(operation.arguments.get("calendar", ""))
        if not text.startswith(f"{name}@"):
            continue
        if day not in _days_in(text):
            break
        found = operation
    return found


def _days_in(text: str) -> Collection[date]:
    try:
        found = parse_calendar(text)
    except InvalidSchedule:  # another program has written it
        return ()
    return () if isinstance(found, str) else found.days


def nobody_there(facts: Facts, outcome: str, reason: str | None) -> Iterator[str]:
    """Say that no worker was alive when the slot came, if it was missed, is late, or waits."""
    absence = facts.absence
    if absence is None or not _came_late(facts, outcome, reason):
        return
    until = "on" if absence.until is None else f"to {when(absence.until)}"
    yield (
        f"No worker was alive from {when(absence.since)} {until}; the last one, "
        f"{absence.last.worker}, {_how_it_ended(absence.last)}."
    )


def _came_late(facts: Facts, outcome: str, reason: str | None) -> bool:
    """Whether the slot was missed, started late, or has come and waits."""
    if facts.slot > facts.now:
        return False
    if reason in _MISSED or outcome in (SlotState.WAITING, SlotState.UNDECIDED):
        return True
    started = facts.entry.started if facts.entry else None
    return started is not None and started - facts.slot > ROUNDING


def _how_it_ended(life: WorkerLife) -> str:
    if life.drained is not None:
        return f"drained on {life.reason or 'a stop'}"
    return "signed out" if life.outcome == LEFT else "was last seen then"


def fares(rates: JobRates) -> Iterator[str]:
    """Say how often a job that fails has failed."""
    for title, rate in (("24 hours", rates.day), ("7 days", rates.week)):
        if rate.failures:
            yield f"In the last {title}, {rate.failures:,} of {rate.runs:,} runs failed."


def usually(rates: JobRates, elapsed: timedelta | None) -> Iterator[str]:
    """Say how long a run usually takes, and what to do if this one takes longer."""
    week = rates.week
    if week.duration_p50 is None or week.duration_p95 is None:
        return
    half = short_duration(week.duration_p50)
    most = short_duration(week.duration_p95)
    yield f"Half of its runs end within {half}, and 19 of 20 within {most}."
    if elapsed is not None and elapsed > max(week.duration_p95, LONG):
        yield f"This one takes longer. {see_stack(rates.job)}"
