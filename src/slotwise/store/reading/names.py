"""Whether a name is known, and what was probably meant by one that is not."""

from __future__ import annotations

from difflib import get_close_matches
from itertools import islice
from typing import Literal

from slotwise.errors import UnknownTask
from slotwise.model.records import RECURRING
from slotwise.store.reading.jobs import jobs_among
from slotwise.store.reading.queries import read, reading
from slotwise.store.reading.task_counts import names_in
from slotwise.store.reading.workers import all_workers
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
    if not (_is_listed(store, name) or _is_run(store, name)):
        raise UnknownTask(
            f"no {kind} {name!r} in this database; {_cure(store, name, kind)}"
        )
    if instance != RECURRING and not _is_listed(store, name, instance):
        raise UnknownTask(
            f"job {name!r} has no recurring instance {instance!r}; see: "
            f"slotwise jobs {name} --instances"
        )


#: Where a name is known, also without a live worker that registers it.
_LISTED = "SELECT * FROM (SELECT task_name FROM {{{0}}} WHERE {{mine}} LIMIT 1) AS {0}"


def _is_listed(store: Store, name: str, instance: str | None = None) -> bool:
    """Whether a row, the ledger or a gap has it; a name also if an operation has it."""
    mine = "task_name = :name"
    tables = ["tasks", "slots", "gaps"]
    if instance is None:
        tables.append("controls")
    else:
        mine += " AND task_instance = :id"
    given = {"name": name, "id": instance}
    return bool(
        read(store, " UNION ALL ".join(map(_LISTED.format, tables)), given, mine=mine)
    )


def _is_run(store: Store, name: str) -> bool:
    return any(worker.live and name in worker.tasks for worker in all_workers(store))


def _cure(store: Store, name: str, kind: Literal["job", "task"]) -> str:
    of_kind = "{is_task}" if kind == "task" else "1 = 1"
    known = f"SELECT DISTINCT task_name FROM {{tasks}} WHERE {of_kind} LIMIT :most"
    found = {row["task_name"] for row in read(store, known, {"most": _MOST})}
    if kind == "task":
        found |= _without_rows(store)
    if near := get_close_matches(name, sorted(found), n=1):
        return f"did you mean {near[0]!r}?"
    if found:
        return f"known are {', '.join(sorted(found))}"
    return (
        "none is scheduled" if kind == "task" else "no worker has planned any job yet"
    )


def _without_rows(store: Store) -> set[str]:
    """Return names of tasks that live workers register, or that the ledger has."""
    with reading(store) as at:
        found = set(islice(names_in(at, "{slots}"), _MOST))
    for worker in all_workers(store):
        if worker.live:
            found.update(worker.tasks)
    return found - jobs_among(store, found)


def ledger_names(store: Store) -> list[str]:
    """Return the names that the ledger has."""
    with reading(store) as at:
        return list(names_in(at, "{slots}"))
