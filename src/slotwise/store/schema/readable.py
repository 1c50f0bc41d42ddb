"""Read rows that any program may have written: an unreadable one costs only itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.exc import DataError

#: What decoding a malformed value raises: in the driver, in a column type of ours, or in a view.
MALFORMED: Final = (DataError, ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class Unread:
    """A row that cannot be decoded: its key, and the error in one line."""

    key: tuple[str, ...]
    error: str


def rows_apart(
    connection: sa.Connection, statement: sa.Select[tuple[object, ...]], *key: sa.Column[str]
) -> Iterator[sa.RowMapping | Unread]:
    """Yield the rows of a statement in its order; those that the driver cannot decode as ``Unread``."""
    try:
        yield from connection.execute(statement).mappings().all()
        return
    except MALFORMED:
        keys = connection.execute(statement.with_only_columns(*key)).all()
    for values in keys:
        one = statement.where(*(column == value for column, value in zip(key, values, strict=True)))
        try:
            found = connection.execute(one).mappings().first()
        except MALFORMED as error:
            inner = getattr(error, "orig", None) or error
            yield Unread(tuple(values), str(inner).partition("\n")[0])
        else:
            if found is not None:  # Race: it may have been deleted in between.
                yield found


def texts_of(document: str | None) -> list[str]:
    """Return the strings of a JSON array. Raises ValueError for anything else."""
    found = json.loads(document or "[]")
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ValueError(f"{document!r:.60} is not an array of strings")
    return found
