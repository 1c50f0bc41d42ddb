"""Operations on many one-time tasks of a name: retry, cancel and delete.

Each transaction changes up to 5,000 rows and writes one entry of the audit. Race: rows that a
worker claims just now are locked, and skipped; rows that it has claimed are held, and only asked
to stop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from slotwise.model.records import When
from slotwise.model.vocabulary import ListedState
from slotwise.store.operations.transaction import Operation, Progress
from slotwise.store.queue.queue import queue_of
from slotwise.store.queue.task_commands import AT_ONCE, TaskCommands, in_state
from slotwise.store.queue.task_filter import TaskFilter, matching
from slotwise.store.schema.tables import Condition, is_task

#: Statements of one transaction.
_STATEMENTS = 10
_NOW = When(at=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """One-time tasks of a name, in one state or any, of which at most ``most`` are changed."""

    name: str
    state: str | None
    where: TaskFilter
    most: int | None = None

    def conditions(self, at: Operation) -> list[Condition]:
        """Return the conditions of the filter, without name and state."""
        return matching(at.tasks.c, self.where)

    def left(self, rows: int) -> int | None:
        """Return how many more may be changed; None: any number."""
        return None if self.most is None else max(self.most - rows, 0)


def retry(at: Operation, chosen: Chosen, so_far: Progress) -> Progress:
    """Let dead tasks wait again, as if they had never been tried."""
    dead = replace(chosen, state=ListedState.DEAD)
    if so_far.is_rehearsed:
        return _counted(at, dead)
    conditions = chosen.conditions(at)

    def some(commands: TaskCommands, last: str | None, most: int) -> Sequence[str]:
        return commands.retry(
            at.connection, chosen.name, None, _NOW, conditions, most, last
        )

    return _by_statements(at, "retry_tasks", dead, some, so_far)


def delete(at: Operation, chosen: Chosen, so_far: Progress) -> Progress:
    """Remove tasks that do not run."""
    if so_far.is_rehearsed:
        return _counted(at, chosen, ~at.tasks.c.picked)
    return _remove(at, "delete_tasks", chosen, so_far)


def cancel(at: Operation, chosen: Chosen, so_far: Progress) -> Progress:
    """Remove tasks that do not run; then ask the handlers of those that run to stop."""
    if so_far.is_rehearsed:
        return _counted(at, chosen)
    if chosen.state != ListedState.RUNNING:
        so_far = _remove(at, "cancel_tasks", chosen, so_far)
        if chosen.state is not None or not so_far.is_done:
            return so_far
    commands = queue_of(at.store.dialect).tasks
    stopped = commands.stop_all(
        at.connection, chosen.name, chosen.conditions(at), chosen.left(so_far.rows)
    )
    return _signed(at, "cancel_tasks", chosen, stopped, so_far, is_done=True)


def _remove(at: Operation, verb: str, chosen: Chosen, so_far: Progress) -> Progress:
    conditions = chosen.conditions(at)

    def some(commands: TaskCommands, last: str | None, most: int) -> Sequence[str]:
        return commands.remove(
            at.connection, chosen.name, chosen.state, last, conditions, most
        )

    return _by_statements(at, verb, chosen, some, so_far)


def _by_statements(
    at: Operation,
    verb: str,
    chosen: Chosen,
    some: Callable[[TaskCommands, str | None, int], Sequence[str]],
    so_far: Progress,
) -> Progress:
    """Change rows by a few statements, each of those after the id with which the last one ended."""
    commands = queue_of(at.store.dialect).tasks
    rows = 0
    after = so_far.after or None
    is_done = False
    for _ in range(_STATEMENTS):
        left = chosen.left(so_far.rows + rows)
        most = AT_ONCE if left is None else min(left, AT_ONCE)
        ids = some(commands, after, most)
        rows += len(ids)
        is_done = len(ids) < most or chosen.left(so_far.rows + rows) == 0
        if is_done:
            break
        after = ids[-1]
    return _signed(
        at, verb, chosen, rows, replace(so_far, after=after or ""), is_done=is_done
    )


def _signed(
    at: Operation,
    verb: str,
    chosen: Chosen,
    rows: int,
    so_far: Progress,
    *,
    is_done: bool,
) -> Progress:
    """Write what this transaction has changed to the audit, and return the progress."""
    if rows:
        given = chosen.where.as_json().items()
        where = {name: value for name, value in given if value is not None}
        state = chosen.state
        at.sign(verb, job=chosen.name, rows=rows, state=state, where=where or None)
    return replace(so_far, rows=so_far.rows + rows, is_done=is_done)


def _counted(at: Operation, chosen: Chosen, *conditions: Condition) -> Progress:
    """Return how many rows an operation would change: a rehearsal locks none."""
    tasks = at.tasks.c
    mine = [tasks.task_name == chosen.name, is_task(tasks), *chosen.conditions(at)]
    mine += conditions
    if chosen.state is not None:
        mine += in_state(tasks, chosen.state)
    found = at.count(*mine)
    rows = found if chosen.most is None else min(found, chosen.most)
    return Progress(rows=rows, is_done=True, is_rehearsed=True)
