"""Arrays: what a statement of PostgreSQL is told about many rows at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slotwise.execution import Fence, Key, Row
from slotwise.store.rows import ADDED_COLUMNS, Change, ledger_instance


def fence_of(values: Sequence[Any]) -> Fence:
    name, instance, version = values
    return Fence(Key(name, instance), version)


def texts(values: Sequence[str]) -> str:
    """A text[] as the server reads it; the driver would take ten times as long to write one."""
    if not values:
        return "{}"
    joined = '","'.join(values)
    if "\\" in joined or joined.count('"') > 2 * (len(values) - 1):
        joined = '","'.join(value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return f'{{"{joined}"}}'


def integers(values: Iterable[int]) -> str:
    """An array of integers, as ``texts``."""
    return f"{{{','.join(map(str, values))}}}"


def fences(rows: Iterable[Row]) -> dict[str, str]:
    """Keys and versions as arrays, in the order in which they are to be locked."""
    rows = list(rows)
    return {
        "names": texts([row.task_name for row in rows]),
        "instances": texts([row.task_instance for row in rows]),
        "versions": integers(row.version for row in rows),
    }


def spread(
    columns: Mapping[str, list[Any]], kinds: Mapping[str, str], *, added: str | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Parameters and parts of a statement that writes these columns: a column that differs from row to row as an
    array, one that is the same in all rows, as most are, as one value.

    ``added``: the alias of the table whose counts (ADDED_COLUMNS) are added to.
    """
    parameters: dict[str, Any] = {}
    sets, arrays, changed = [], "", ""
    for name, values in columns.items():
        kind, parameter = kinds[name], f"c_{name}"
        if values.count(values[0]) == len(values):
            parameters[parameter], value = values[0], f"%({parameter})s::{kind}"
        else:
            parameters[parameter], value = values, f"i.{name}"
            arrays, changed = f"{arrays}, %({parameter})s::{kind}[]", f"{changed}, {name}"
        sets.append(f"{name} = {added}.{name} + {value}" if added and name in ADDED_COLUMNS else f"{name} = {value}")
    return parameters, {"sets": ", ".join(sets), "arrays": arrays, "changed": changed}


def places(changes: Sequence[Change]) -> dict[str, Any]:
    return {
        **fences(change.held.row for change in changes),
        "holders": [change.held.row.picked_by for change in changes],
        "places": [change.held.place for change in changes],
    }


def ledger_places(changes: Sequence[Change]) -> dict[str, Any]:
    rows = [change.held.row for change in changes]
    return {
        "names": [row.task_name for row in rows],
        "instances": [ledger_instance(row) for row in rows],
        "slots": [row.slot for row in rows],
        "tokens": [row.version for row in rows],
        "places": [change.ledger_place for change in changes],
    }
