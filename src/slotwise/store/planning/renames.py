"""Let the row of a job, or of a recurring instance, follow when its task was renamed.

Races:

- workers of the old release claim, plan and settle the row under the former name meanwhile.
  Whatever happens here happens under the row's lock, which claims skip, and to a row that no
  worker holds. A job's former row is replaced by one that sleeps, which a worker of the old
  release finds at its start in place of none. So the job has one row that is awake, at any time;
- a caller's transaction lets instances follow, of several tasks and in any order, and stays open.
  It shares the latches of the names, so that two such transactions meet on the rows of one
  instance only, as they would without a rename. Rows of the former name are locked first. Another
  transaction may insert the row of the new name meanwhile: then the former one is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import sqlalchemy as sa

from slotwise.decide.claim import Advance
from slotwise.decide.pause import asleep
from slotwise.model.records import RECURRING, Key, Row
from slotwise.model.vocabulary import RowState
from slotwise.schedules.text import readable
from slotwise.store.dialects.conditions import of_key
from slotwise.store.operations import job_operations
from slotwise.store.operations.transaction import Operation, is_plan_of
from slotwise.store.planning.plan_rows import born, lock, write
from slotwise.store.schema.tables import is_plan
from slotwise.store.slots.store import Store

logger = logging.getLogger(__name__)

#: The operation, in the audit.
RENAME = "rename"

HELD = (
    "%s: its row under the former name %s is held, paused with instances, or has slots that have "
    "not ended: it keeps that name until a worker starts while it is idle"
)


def row_name(store: Store, name: str) -> str:
    """Return the name under which a job's row is: a former one until it follows."""
    names = store.names_of(name)
    if len(names) == 1:
        return name
    tasks = store.tables.tasks.c
    rows = sa.select(tasks.task_name).where(
        tasks.task_name.in_(names), tasks.task_instance == RECURRING, is_plan(tasks)
    )
    with store.transaction() as connection:
        found = set(connection.scalars(rows))
    return next((one for one in names if one in found), name)


def follow(at: Operation, key: Key, aliases: Sequence[str]) -> Key:
    """Give the row of a former name this key; return the key under which the row is.

    That is the former one while the row is held, or slots beside it have not ended. If there are
    rows under both names, the former one of a job is put to sleep, and that of an instance
    deleted.
    """
    is_instance = key.task_instance != RECURRING
    for name in sorted({key.task_name, *aliases}):
        at.dialect.latch(at.connection, name, shared=is_instance)
    for alias in aliases:
        if not _follow_from(at, key, alias):
            return Key(alias, key.task_instance)
    return key


def _follow_from(at: Operation, key: Key, alias: str) -> bool:
    """Deal with the row of a former name; return False if it keeps that name for now."""
    family = at.family(alias, key.task_instance)
    row = next((one for one in family if is_plan_of(one, key.task_instance)), None)
    if row is None or _was_left_behind(at, row):
        return True
    is_there = lock(at.connection, at.store, key)[0] is not None
    if not is_there:
        is_open = row.picked or row.attempt > 0 or len(family) > 1
        if (
            is_open
            or readable(row.schedule) is None
            or _sleeps_with_instances(at, row)
        ):
            logger.warning(HELD, key.task_name, alias)
            return False
        is_there = not _move(at, row, key)
    if is_there:
        _silence(at, row, family, key)
    return True


def _sleeps_with_instances(at: Operation, row: Row) -> bool:
    """Whether a job is paused with instances, which wake under the name of its row."""
    if row.task_instance != RECURRING or row.state != RowState.PAUSED:
        return False
    tasks = at.tasks.c
    others = tasks.task_name == row.task_name, tasks.task_instance != RECURRING
    return at.count(*others, is_plan(tasks)) > 0


def _was_left_behind(at: Operation, row: Row) -> bool:
    """Whether a rename has put this row to sleep."""
    if row.state != RowState.PAUSED:
        return False
    controls = at.store.tables.controls
    mine = of_key(at.tasks.c, row)
    command = sa.select(controls.c.command).where(
        controls.c.id == at.tasks.c.control, *mine
    )
    return at.connection.scalar(command) == RENAME


def _silence(at: Operation, row: Row, family: Sequence[Row], key: Key) -> None:
    if row.task_instance != RECURRING:
        job_operations.end(at, list(family))
    elif row.state is None:
        _put_to_sleep(at, row, _sign(at, row, key))


def _sign(at: Operation, row: Row, key: Key) -> int:
    return at.sign(
        RENAME, job=key.task_name, id=key.task_instance, former=row.task_name
    )


def _put_to_sleep(at: Operation, row: Row, number: int) -> None:
    columns: dict[str, object] = {"state": RowState.PAUSED, "control": number}
    if not row.picked:  # the settlement of a held row parks it
        columns |= asleep(row.due)
    write(at.transaction, row, Advance(row=columns))


def _move(at: Operation, row: Row, key: Key) -> bool:
    """Return False if another transaction has inserted a row with this key."""
    tasks = at.tasks
    found = at.connection.execute(sa.select(tasks).where(*of_key(tasks.c, row)))
    columns = dict(found.mappings().one())
    moved = columns | key._asdict()
    if not at.dialect.insert_new(at.connection, tasks, moved):
        return False
    at.delete(row)
    _move_pause(at, row, key)
    number = _sign(at, row, key)
    if key.task_instance == RECURRING:
        _leave_asleep(at, row, columns["plan"], number)
    return True


def _move_pause(at: Operation, row: Row, key: Key) -> None:
    """Let a pause that ends by itself follow the row."""
    pauses = at.store.tables.pauses
    id = "" if key.task_instance == RECURRING else key.task_instance
    mine = of_key(pauses.c, Key(row.task_name, id))
    at.connection.execute(pauses.update().where(*mine).values(task_name=key.task_name))


def _leave_asleep(at: Operation, row: Row, plan: object, number: int) -> None:
    """Insert a row that sleeps in place of one that was moved, as its code declares it."""
    schedule = readable(row.schedule)
    assert schedule is not None  # else the row is not moved
    sleeping = born(row.key, schedule.last, row.watermark, at.now)
    sleeping |= asleep(sleeping["execution_time"])
    sleeping |= {"control": number, "plan": plan, "priority": row.priority}
    at.dialect.insert_new(at.connection, at.tasks, sleeping)
