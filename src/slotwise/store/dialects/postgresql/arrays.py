"""Arrays: what a statement of PostgreSQL is told about many rows at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from slotwise.model.records import Fence, Key, Row
from slotwise.store.dialects.queue_cursors import Range
from slotwise.store.schema.rows import ADDED_COLUMNS, Change, ledger_instance, pending_of


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


def instants(values: Sequence[datetime | None]) -> str:
    """An array of instants, as ``texts``; most of a batch are the same."""
    written = {value: "NULL" if value is None else f'"{value}"' for value in set(values)}
    return f"{{{','.join([written[value] for value in values])}}}"


def fences(rows: Iterable[Row]) -> dict[str, str]:
    """Keys and versions as arrays, in the order in which they are to be locked."""
    rows = list(rows)
    return {
        "names": texts([row.task_name for row in rows]),
        "instances": texts([row.task_instance for row in rows]),
        "versions": integers(row.version for row in rows),
    }


def marked(ranges: Iterable[Range]) -> dict[str, Any]:
    """What ``HEADS`` is told."""
    ranges = list(ranges)
    return {
        "heads": texts([one.task_name for one in ranges]),
        "firsts": integers(one.first for one in ranges),
        "lasts": integers(one.last for one in ranges),
        "sinces": texts(["-infinity" if one.since is None else one.since.isoformat() for one in ranges]),
    }


def pending(trying_since: datetime | None, catch_up_until: datetime | None) -> str | None:
    """As ``pending_of``, as the server reads it; most rows have nothing there."""
    found = pending_of(trying_since, catch_up_until)
    return None if found is None else json.dumps(found)


def spread(
    columns: Mapping[str, list[Any]], kinds: Mapping[str, str], *, added: str | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Parameters and parts of a statement that writes these columns: a column that differs from row to row as an
    array, one that is the same in all rows, as most are, as one value.

    ``added``: the alias of the table whose counts (ADDED_COLUMNS) are added to.
    """
    parameters, parts = varying(columns, kinds)
    values = {name: parts.pop(name) for name in columns}
    if added is not None:
        values |= {name: f"{added}.{name} + {values[name]}" for name in ADDED_COLUMNS}
    return parameters, {**parts, "sets": ", ".join(f"{name} = {value}" for name, value in values.items())}


def varying(columns: Mapping[str, list[Any]], kinds: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """As ``spread``; each part that has a column's name is its value."""
    parameters: dict[str, Any] = {}
    parts = {"arrays": "", "changed": ""}
    for name, values in columns.items():
        kind, parameter = kinds[name], f"c_{name}"
        if values.count(values[0]) == len(values):
            parameters[parameter], parts[name] = values[0], f"%({parameter})s::{kind}"
        else:
            parameters[parameter], parts[name] = instants(values) if kind == "timestamptz" else values, f"i.{name}"
            parts["arrays"] += f", %({parameter})s::{kind}[]"
            parts["changed"] += f", {name}"
    return parameters, parts


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
