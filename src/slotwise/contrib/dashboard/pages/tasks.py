"""One-time tasks: names with their backlog, a list, and one task."""

from __future__ import annotations

from typing import Final

from slotwise.contrib.dashboard.access import Refused, Role
from slotwise.contrib.dashboard.reading import Page, Reading
from slotwise.inspect import TaskInfo
from slotwise.spi import TASK_STATES, redact

PAGE: Final = 100
_HIDDEN: Final = "hidden: this needs the role admin"


def listing(reading: Reading) -> Page:
    """Show how many tasks of each name there are, and with ``name`` or ``state`` a list of them."""
    given = reading.given
    name, state, after = given.get("name"), given.get("state"), given.get("after")
    if state is not None and state not in TASK_STATES:
        raise Refused(f"state={state!r:.60}: write one of {', '.join(TASK_STATES)}", 400)
    counts = reading.lines("counts", reading.inspect.task_counts)
    found = list[TaskInfo]()
    if name is not None:
        found = reading.lines(
            "tasks",
            lambda: reading.inspect.tasks(name, state=state, after=after, limit=PAGE),
        )
    data = {
        "name": name,
        "state": state,
        "counts": counts,
        "backlog": reading.lines("backlog", reading.inspect.backlog),
        "tasks": found,
        "next": found[-1].id if len(found) == PAGE else None,
    }
    shown = {"states": TASK_STATES}
    return Page(template="tasks.html", title="Tasks", data=data, shown=shown)


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
    if not reading.visitor.role.includes(Role.ADMIN):
        return _HIDDEN
    try:
        return redact(repr(task.data))
    except Exception as error:  # whatever a codec of the application raises
        return f"it cannot be decoded: {type(error).__name__}: {error}"
