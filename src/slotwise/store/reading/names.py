"""Whether a name is known, and what was probably meant by one that is not."""

from __future__ import annotations

from difflib import get_close_matches
from itertools import islice
from typing import Literal

import sqlalchemy as sa

from slotwise.errors import UnknownTask
from slotwise.model.records import RECURRING
from slotwise.store.reading.jobs import jobs_among
from slotwise.store.reading.paging import rows
from slotwise.store.reading.queries import read
from slotwise.store.reading.task_counts import names_in
from slotwise.store.reading.workers import all_workers
from slotwise.store.schema.tables import is_task
from slotwise.store.slots.store import Store

#: Names in a message.
_MOST = 50


def check_name(
    store: Store,
    name: str,
    instance: str = RECURRING,
    *,
    kind: Literal["job", "task"] = "job",
) -> None:
    """Raise UnknownTask unless this name is known, and the job has this instance.

    Known is what a row, the ledger, a gap or an operation has, or a live worker registers.
    ``kind`` is what the message calls it.
    """
    if not (_is_listed(store, name) or _is_operated(store, name) or _is_run(store, name)):
        raise UnknownTask(
            f"no {kind} {name!r} in this database; {_cure(store, name, kind)}"
        )
    if instance != RECURRING and not _is_listed(store, name, instance):
        raise UnknownTask(
            f"job {name!r} has no recurring instance {instance!r}; see: "
            f"slotwise jobs {name} --instances"
        )


#: Where a name is known, also without a live worker that registers it.
_LISTED = " UNION ALL ".join(
    f"SELECT * FROM (SELECT task_name FROM {{{table}}} WHERE {{mine}} LIMIT 1) AS {table}"
    for table in ("tasks", "slots", "gaps")
)
_OPERATED = "SELECT task_name FROM {controls} WHERE task_name = :name LIMIT 1"


def _is_listed(store: Store, name: str, instance: str | None = None) -> bool:
    """Whether a row, the ledger or a gap has it."""
    mine = "task_name = :name"
    if instance is not None:
        mine += " AND task_instance = :id"
    given = {"name": name, "id": instance}
    with store.transaction() as connection:
        return bool(read(connection, store, _LISTED, given, mine=mine))


def _is_operated(store: Store, name: str) -> bool:
    with store.transaction() as connection:
        return bool(read(connection, store, _OPERATED, {"name": name}))


def _is_run(store: Store, name: str) -> bool:
    return any(worker.live and name in worker.tasks for worker in all_workers(store))


def _cure(store: Store, name: str, kind: Literal["job", "task"]) -> str:
    tasks = store.tables.tasks
    wanted = sa.select(tasks.c.task_name).distinct().limit(_MOST)
    if kind == "task":
        wanted = wanted.where(is_task(tasks))
    found = {row["task_name"] for row in rows(store, wanted)}
    if kind == "task":
        found |= _without_rows(store)
    if near := get_close_matches(name, sorted(found), n=1):
        return f"did you mean {near[0]!r}?"
    if found:
        return f"known are {', '.join(sorted(found))}"
    return "none is scheduled" if kind == "task" else "no worker has planned any job yet"


def _without_rows(store: Store) -> set[str]:
    """Return names of tasks that live workers register, or that the ledger has."""
    with store.transaction() as connection:
        found = set(islice(names_in(connection, store, "{slots}"), _MOST))
    for worker in all_workers(store):
        if worker.live:
            found.update(worker.tasks)
    return found - jobs_among(store, found)


def ledger_names(store: Store) -> list[str]:
    """Return the names that the ledger has."""
    with store.transaction() as connection:
        return list(names_in(connection, store, "{slots}"))
