"""From columns to values: which columns a row is read with, how it becomes a Row, and rows that
cannot be decoded.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DataError

from slotwise.model.records import Claim, Row, Transition
from slotwise.model.vocabulary import reason_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

View = TypeVar("View", bound="DataclassInstance")
Read = TypeVar("Read")

#: Values in the document ``pending``: most slots have none, and no statement compares or counts
#: them.
PENDING = ("trying_since", "catch_up_until", "called_off")
#: The columns of a Row, in the order of ``row_of``.
ROW_COLUMNS = (
    *(one.name for one in fields(Row) if one.name not in (*PENDING, "flaw")),
    "pending",
)

#: The columns of a row of which only the claim matters, without the payload.
HOLD_COLUMNS = (
    "task_name",
    "task_instance",
    "execution_time",
    "version",
    "picked",
    "picked_by",
    "last_heartbeat",
    "lease",
    "kind",
    "slot",
    "attempt",
    "schedule",
    "plan_instance",
    "cancel_requested",
    "control",
    "pending",
)

#: The version that a claim raises at most, and the attempts: columns end there, and a claim must
#: not fail.
LAST_VERSION = 2**62 - 3
LAST_ATTEMPT = 2**31 - 2
#: Longer leases than the settings allow count as none.
LONGEST_LEASE = timedelta(days=1000)
#: What a transition may change on a row, with the PostgreSQL type of each.
CHANGED_COLUMNS = {
    "execution_time": "timestamptz",
    "slot": "timestamptz",
    "next_slot": "timestamptz",
    "watermark": "timestamptz",
    "schedule": "text",
    "origin": "text",
    "collapsed": "bigint",
    "attempt": "integer",
    "lost_count": "integer",
    "state": "text",
    "control": "bigint",
    "parked_due": "timestamptz",
    "consecutive_failures": "integer",
    "unheld_since": "timestamptz",
    "last_success": "timestamptz",
    "last_failure": "timestamptz",
    "last_error": "text",
    "pending": "json",
}

#: The values of a fast finish, with their PostgreSQL types: what a row is checked against, and
#: what it becomes.
ADVANCED = {
    "slot": "timestamptz",
    "schedule": "text",
    "origin": "text",
    "collapsed": "bigint",
    "due": "timestamptz",
    "next_slot": "timestamptz",
    "after_next": "timestamptz",
}

_DECIDED = (
    "slot",
    "next_slot",
    "watermark",
    "origin",
    "collapsed",
    "attempt",
    "lost_count",
    *PENDING,
)

#: The columns of the ledger that a settlement writes, with their PostgreSQL types; and the counts
#: that it adds to.
RECORDED_COLUMNS = {
    "outcome": "text",
    "reason": "text",
    "error": "text",
    "attempts": "integer",
    "lost": "integer",
    "aborted": "integer",
    "finished": "timestamptz",
}
ADDED_COLUMNS = ("lost", "aborted")


def utc(value: object) -> Any:
    """Convert an instant to UTC: a caller's connection returns its session's zone. Other values
    stay.
    """
    if not isinstance(value, datetime) or value.tzinfo is UTC:
        return value
    return value.astimezone(UTC)


def stored(row: Row, columns: Mapping[str, object]) -> dict[str, object]:
    """Return the changes of a row as they are written, with ``pending`` as one document."""
    others = {name: value for name, value in columns.items() if name not in PENDING}
    if (
        len(others) == len(columns) or row.flaw is not None
    ):  # the flaw may be in it: kept as it is
        return others
    given = {name: columns.get(name, getattr(row, name)) for name in PENDING}
    pending = {
        name: one.isoformat() if isinstance(one, datetime) else one
        for name, one in given.items()
        if one
    }
    return others | {"pending": pending or None}


def decided(row: Row) -> dict[str, object]:
    """Return what the decision about a late slot writes to its row."""
    return stored(row, {name: getattr(row, name) for name in _DECIDED})


def row_of(
    values: Sequence[Any],
    flaw: str | None = None,
    *,
    names: Sequence[str] = ROW_COLUMNS,
) -> Row:
    """A Row of values that come in the order of ``names``; the rest is left at its default. See
    ``flawed``.
    """
    found = dict(zip(names, values, strict=True))
    found["consecutive_failures"] = min(
        found.get("consecutive_failures") or 0, LAST_ATTEMPT
    )
    pending = found.pop("pending")
    return flawed(Row(**found), pending, flaw)


def flawed(row: Row, pending: Mapping[str, str] | str | None, flaw: str | None) -> Row:
    """The row with what stands in ``pending``, without keys of another release. What cannot be
    read is its flaw.
    """
    if pending is None and flaw is None:
        return row
    try:
        pending = (json.loads(pending) if isinstance(pending, str) else pending) or {}
        found: dict[str, Any] = {
            name: pending[name] for name in PENDING if name in pending
        }
        found |= {
            name: datetime.fromisoformat(value)
            for name, value in found.items()
            if name != "called_off"
        }
        return replace(row, flaw=flaw, **found)
    except Exception as error:  # deep, long or foreign JSON
        return replace(row, flaw=flaw or str(error))


def filled(
    kind: type[View], row: sa.RowMapping | Mapping[str, object], **others: object
) -> View:
    """Return a value of ``others``, and of the columns that have the names of its further
    fields.
    """
    found = dict(row)
    for name in _names_of(kind):
        if name in found and name not in others:
            others[name] = utc(found[name])
    if isinstance(reason := others.get("reason"), str):
        others["reason"] = reason_of(reason)
    return kind(**others)


@lru_cache(maxsize=32)
def _names_of(kind: type[DataclassInstance]) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A row that this transaction has locked. ``transaction_id`` tells later whether the
    transaction committed.
    """

    row: Row
    now: datetime
    transaction_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A held row and what becomes of it. ``stranger``: the ledger does not know this claim of its
    slot.
    """

    held: Held
    transition: Transition
    stranger: bool = False

    @property
    def never_began(self) -> bool:
        """Whether this claim's attempt does not count; the ledger gets back the start of the
        one before.
        """
        record = self.transition.record
        return record is not None and record.attempts < self.held.row.attempt

    @property
    def recorded(self) -> dict[str, object]:
        record = self.transition.record
        assert record is not None
        columns = {
            name: getattr(record, name)
            for name in RECORDED_COLUMNS
            if name != "finished"
        }
        return {**columns, "finished": self.held.now if record.final else None}


def claim_of(row: Row) -> Claim:
    """Return the claim under which ``row`` is held."""
    at = row.last_heartbeat or row.execution_time
    return Claim(
        row=row,
        holder=row.picked_by or "",
        lease=row.lease or timedelta(0),
        claimed_at=at,
    )


def expect(written: int, expected: int, row: Row) -> None:
    """Raise, so that nothing is committed, if a locked row was not written."""
    if written != expected:
        raise RuntimeError(
            f"wrote {written} of {expected} locked rows around {row.key}; nothing is committed"
        )


def expect_all(written: int, expected: int, what: str) -> None:
    """Raise, so that nothing is committed, if not all rows were written."""
    if written != expected:
        raise RuntimeError(
            f"wrote {written} of {expected} {what}; nothing is committed"
        )


# -- rows that any program may have written: an unreadable one costs only itself ------------------

#: What decoding a malformed value raises: in the driver, in a column type of ours, or in a view.
MALFORMED: Final = (
    DataError,
    ValueError,
    TypeError,
    AttributeError,
    KeyError,
    OverflowError,
    RecursionError,
)


@dataclass(frozen=True, slots=True)
class Unread:
    """A row that cannot be decoded: its key, and the error in one line."""

    key: tuple[str, ...]
    error: str


def rows_apart(
    connection: sa.Connection,
    statement: sa.Select[tuple[object, ...]],
    *key: sa.Column[str],
    read: Callable[[sa.RowMapping], Read],
) -> Iterator[Read | Unread]:
    """Yield what ``read`` makes of each row of a statement, in its order; ``Unread`` for one that
    cannot be decoded.
    """
    for values, known in _by_key(connection, statement, key):
        try:
            row = known
            if row is None:
                mine = map(operator.eq, key, values)
                row = connection.execute(statement.where(*mine)).mappings().first()
            if row is not None:  # Race: it may have been deleted in between.
                yield read(row)
        except MALFORMED as error:
            why = str(getattr(error, "orig", None) or error)
            yield Unread(values, why.partition("\n")[0])


def _by_key(
    connection: sa.Connection,
    statement: sa.Select[tuple[object, ...]],
    key: Sequence[sa.Column[str]],
) -> Sequence[tuple[tuple[str, ...], sa.RowMapping | None]]:
    """Return the rows of a statement with their keys; only the keys, if a row cannot be decoded."""
    try:
        rows = connection.execute(statement).mappings().all()
        return [(tuple(row[column.name] for column in key), row) for row in rows]
    except MALFORMED:
        keys = connection.execute(statement.with_only_columns(*key)).all()
        return [(tuple(values), None) for values in keys]


def tags_text(tags: Collection[str]) -> str | None:
    """Return the tags of an instance as its row has them: sorted, as a JSON array."""
    return json.dumps(sorted(set(tags)), ensure_ascii=False) if tags else None


def texts_of(document: str | None) -> list[str]:
    """Return the strings of a JSON array. Raises ValueError for anything else."""
    found = json.loads(document or "[]")
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ValueError(f"{document!r:.60} is not an array of strings")
    return found
