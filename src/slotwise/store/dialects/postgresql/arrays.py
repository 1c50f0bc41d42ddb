"""What statements take as arrays: batches of keys and columns, as the server reads them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from slotwise.model.records import Key, LedgerKey, Row
from slotwise.store.dialects.port import Range
from slotwise.store.dialects.task_statements import Parameters
from slotwise.store.schema.rows import ADDED_COLUMNS


def texts(values: Collection[str]) -> str:
    """A text[] as the server reads it; the driver would take ten times as long to write one."""
    if not values:
        return "{}"
    joined = '","'.join(values)
    if "\\" in joined or joined.count('"') > 2 * (len(values) - 1):
        joined = '","'.join(
            value.replace("\\", "\\\\").replace('"', '\\"') for value in values
        )
    return f'{{"{joined}"}}'


def integers(values: Iterable[int]) -> str:
    """An array of integers, as ``texts``."""
    return f"{{{','.join(map(str, values))}}}"


def instants(values: Sequence[datetime | None]) -> str:
    """An array of instants, as ``texts``; most of a batch are the same."""
    written = {
        value: "NULL" if value is None else f'"{value}"' for value in set(values)
    }
    return f"{{{','.join([written[value] for value in values])}}}"


def intervals(values: Sequence[timedelta]) -> str:
    """An array of intervals, as ``instants``."""
    written = {
        value: f"{value.days} days +{value.seconds}.{value.microseconds:06} seconds"
        for value in set(values)
    }
    return f"{{{','.join([written[value] for value in values])}}}"


def keys_of(rows: Iterable[Key | LedgerKey | Row]) -> Parameters:
    """Names and instances as arrays, in the order in which the rows are to be locked."""
    rows = list(rows)
    return {
        "names": texts([row.task_name for row in rows]),
        "instances": texts([row.task_instance for row in rows]),
    }


def fences(rows: Iterable[Row]) -> Parameters:
    """As ``keys_of``, with the versions."""
    rows = list(rows)
    return {**keys_of(rows), "versions": integers(row.version for row in rows)}


def marked(ranges: Iterable[Range]) -> Parameters:
    """Return the parameters of ``HEADS``."""
    ranges = list(ranges)
    return {
        "heads": texts([one.task_name for one in ranges]),
        "firsts": integers(one.first for one in ranges),
        "lasts": integers(one.last for one in ranges),
        "sinces": texts(
            [
                "-infinity" if one.since is None else one.since.isoformat()
                for one in ranges
            ]
        ),
    }


def spread(
    rows: Sequence[Mapping[str, object]],
    kinds: Mapping[str, str],
    *,
    added: str | None = None,
) -> tuple[Parameters, dict[str, str]]:
    """Return parameters and parts of a statement that writes the columns of these rows.

    ``added``: the alias of the table whose counts (ADDED_COLUMNS) are added to.
    """
    columns = {name: [row[name] for row in rows] for name in kinds if name in rows[0]}
    parameters, parts = varying(columns, kinds)
    values = {name: parts.pop(name) for name in columns}
    if added is not None:
        values |= {name: f"{added}.{name} + {values[name]}" for name in ADDED_COLUMNS}
    return parameters, {
        **parts,
        "sets": ", ".join(f"{name} = {value}" for name, value in values.items()),
    }


def varying(
    columns: Mapping[str, list[Any]], kinds: Mapping[str, str]
) -> tuple[Parameters, dict[str, str]]:
    """Return parameters and parts for columns; each part that has a column's name is its value.

    A column that differs from row to row is an array. One that is the same in all rows, as most
    are, is one value.
    """
    parameters: Parameters = {}
    parts = {"arrays": "", "changed": ""}
    for name, values in columns.items():
        kind = kinds[name]
        parameter = f"c_{name}"
        if kind == "json":
            values = [None if value is None else json.dumps(value) for value in values]
        if values.count(values[0]) == len(values):
            parameters[parameter], parts[name] = values[0], f"%({parameter})s::{kind}"
        else:
            parameters[parameter], parts[name] = (
                instants(values) if kind == "timestamptz" else values,
                f"i.{name}",
            )
            parts["arrays"] += f", %({parameter})s::{kind}[]"
            parts["changed"] += f", {name}"
    return parameters, parts


def held_fences(rows: Sequence[Row]) -> Parameters:
    """As ``fences``, with the holders."""
    return {**fences(rows), "holders": [row.picked_by for row in rows]}


def ledger_fences(rows: Sequence[Row]) -> Parameters:
    """Ledger keys with the tokens of the rows."""
    keys = [key for row in rows if (key := row.ledger_key)]
    return {
        **keys_of(keys),
        "slots": [key.slot for key in keys],
        "tokens": integers(row.version for row in rows),
    }
