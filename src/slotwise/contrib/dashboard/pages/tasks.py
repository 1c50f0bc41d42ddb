"""One-time tasks: names with their backlog, a list, and one task."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from slotwise.contrib.dashboard.access import Refused, Role
from slotwise.contrib.dashboard.reading import Page, Reading
from slotwise.inspect import (
    Inspection,
    OutcomeCount,
    TaskExplanation,
    TaskFilter,
    TaskInfo,
)
from slotwise.spi import TASK_STATES, Outcome, redact

PAGE: Final = 100
_HIDDEN: Final = "hidden: this needs the role admin"
_MINUTE: Final = timedelta(minutes=1)
#: What is due for longer than this is late.
LATE: Final = _MINUTE
#: Paces are those of this time, if the work had begun before it.
_RECENTLY: Final = timedelta(minutes=5)
#: What ended before this time is counted, unless a worker counts late.
_COUNTED_AFTER: Final = timedelta(minutes=2)
_HOUR: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How many tasks of a name have ended in a minute, and how many of their attempts have
    failed.
    """

    ended: float = 0.0
    failed: float = 0.0


def listing(reading: Reading) -> Page:
    """Show how many tasks of each name there are, and with ``name`` a list of those that the
    filter matches.
    """
    given = reading.given
    name, state, after = given.get("name"), given.get("state"), given.get("after")
    if state is not None and state not in TASK_STATES:
        raise Refused(
            f"state={state!r:.60}: write one of {', '.join(TASK_STATES)}", 400
        )
    where = _filter(reading)
    counts = reading.kept_lines("tasks", reading.inspect.task_counts)
    backlog = reading.kept_lines("late", reading.inspect.backlog)
    names = {one.task for one in counts}
    oldest = {one.name: one.oldest for one in backlog if one.name in names}
    found = list[TaskInfo]()
    if name is not None:
        found = reading.lines(
            "list",
            lambda: reading.inspect.tasks(
                name, state=state, where=where, after=after, limit=PAGE
            ),
        )
    data = {
        "name": name,
        "state": state,
        "where": where,
        "counts": counts,
        "backlog": [one for one in backlog if one.name in names],
        "paces": paces(reading),
        "why": _why(reading, name, oldest.get(name or "")),
        "tasks": found,
        "next": found[-1].id if len(found) == PAGE else None,
    }
    shown = {
        "states": TASK_STATES,
        "given": _given(where, name, state),
        "oldest": oldest,
    }
    return Page(template="tasks.html", title="Tasks", data=data, shown=shown)


def _filter(reading: Reading) -> TaskFilter:
    return TaskFilter(
        begins=reading.given.get("begins"),
        error=reading.given.get("error"),
        since=reading.instant("since"),
        until=reading.instant("until"),
        order_key=reading.given.get("order_key"),
    )


def _why(
    reading: Reading, name: str | None, oldest: timedelta | None
) -> TaskExplanation | None:
    """Return why the due tasks of a name wait, if they have waited for long."""
    if name is None or oldest is None or oldest < LATE:
        return None
    return reading.kept("why", lambda: reading.inspect.explain_backlog(name), of=name)


def _given(
    where: TaskFilter, name: str | None, state: str | None
) -> Mapping[str, str | None]:
    """Return the values of a filter as addresses and forms have them."""
    return {
        "name": name,
        "state": state,
        "begins": where.begins,
        "error": where.error,
        "since": None if where.since is None else where.since.isoformat(),
        "until": None if where.until is None else where.until.isoformat(),
        "order_key": where.order_key,
    }


def paces(reading: Reading) -> dict[str, Pace]:
    """Return the present pace of each name: that of five minutes, or since its work began."""
    return reading.kept("pace", lambda: _paces(reading.inspect)) or {}


def _paces(inspect: Inspection) -> dict[str, Pace]:
    now = inspect.now()
    counts = inspect.outcome_counts(now - _HOUR, now, kind="recent")
    return paces_of(counts, now)


def paces_of(counts: Iterable[OutcomeCount], now: datetime) -> dict[str, Pace]:
    """Return the pace of each name of these counts, each at the instant of its ``hour``."""
    by_name = defaultdict[str, list[OutcomeCount]](list)
    for one in counts:
        by_name[one.job].append(one)
    return {name: _pace_of(mine, now) for name, mine in by_name.items()}


def _pace_of(counts: Sequence[OutcomeCount], now: datetime) -> Pace:
    """Return the pace of one name. A count is about the time since the one before it, and at most
    about a minute: workers count once a minute.
    """
    recent = [one for one in counts if one.hour > now - _RECENTLY]
    if not recent:
        return Pace()
    times = sorted(one.hour for one in recent)
    before = [one.hour for one in counts if one.hour < times[0]]
    began = max([*before, times[0] - _MINUTE])
    minutes = (max(times[-1], now - _COUNTED_AFTER) - began) / _MINUTE
    ended = Counter[bool]()
    for one in recent:
        ended[one.outcome != Outcome.FAILED] += one.count
    return Pace(
        ended=round(ended[True] / minutes, 1), failed=round(ended[False] / minutes, 1)
    )


def pace_of_all(paces: Mapping[str, Pace]) -> Pace:
    """Add up the paces of all names."""
    return Pace(
        ended=round(sum(one.ended for one in paces.values()), 1),
        failed=round(sum(one.failed for one in paces.values()), 1),
    )


def one(reading: Reading) -> Page:
    """Show a task: why it waits or how it has ended, its attempts, and its data to an admin."""
    name, id = reading.text("name"), reading.text("id")
    inspect = reading.inspect
    task = inspect.task(name, id)
    results = reading.lines("results", lambda: inspect.task_results(name, id))
    data = {
        "name": name,
        "id": id,
        "task": task,
        "why": reading.part("why", lambda: inspect.explain_task(name, id)),
        "attempts": reading.lines("attempts", lambda: inspect.attempts(name, id=id)),
        "results": results,
        "payload": None if task is None else _payload(reading, task),
    }
    status = 404 if task is None and not results else 200
    return Page(template="task.html", title=f"{name} {id}", data=data, status=status)


def _payload(reading: Reading, task: TaskInfo) -> str:
    if not reading.visitor.may(Role.ADMIN):
        return _HIDDEN
    try:
        return redact(repr(task.data))
    except Exception as error:  # whatever a codec of the application raises
        return f"it cannot be decoded: {type(error).__name__}: {error}"
