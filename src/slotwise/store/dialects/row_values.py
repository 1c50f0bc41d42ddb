"""The values that the portable verbs write to rows of the queue and of the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import sqlalchemy as sa

from slotwise.decide.claim import is_weighed
from slotwise.model.records import Claim, Fence, Key, Row, to_micros
from slotwise.model.vocabulary import Origin, Outcome
from slotwise.payload.payload import PAYLOAD_LIMIT
from slotwise.store.dialects.port import ClaimRequest
from slotwise.store.schema.rows import (
    LAST_ATTEMPT,
    LAST_VERSION,
    LONGEST_LEASE,
    row_of,
)
from slotwise.store.schema.tables import Expression

Values: TypeAlias = dict[str, object]

#: What a row is without its holder.
RELEASED: Values = dict.fromkeys(
    (
        "picked_by",
        "last_heartbeat",
        "lease",
        "cancel_requested",
        "wanted_due",
        "marked",
    )
)
RELEASED["picked"] = False
#: How often an insert that met a row with its key, and then did not find it, is tried again.
TRIES = 3
#: The most bytes of a payload that is read, with room for a codec's header.
MOST_BYTES = PAYLOAD_LIMIT + 64


class GivenValues:
    """The values of a row that is being inserted; those that are not given are null."""

    def __init__(self, table: sa.Table, values: Mapping[str, object]) -> None:
        self._table = table
        self._values = values

    def __getitem__(self, name: str) -> Expression:
        value = self._values.get(name)
        if isinstance(value, sa.ColumnElement):
            return value
        return sa.literal(value, self._table.c[name].type)


def among_keys(
    columns: Sequence[Expression], keys: Sequence[Sequence[Any]]
) -> sa.ColumnElement[bool]:
    """Whether a row has one of these keys: for each begin of a key, a list of its last part.
    MariaDB reads the whole table for a list of some hundred pairs.
    """
    if not keys:
        return sa.false()
    *begin, last = columns
    parts: dict[tuple[object, ...], list[object]] = {}
    for *first, end in keys:
        parts.setdefault(tuple(first), []).append(end)
    found = []
    for given, ends in parts.items():
        mine = [column == value for column, value in zip(begin, given, strict=True)]
        found.append(sa.and_(*mine, last.in_(ends)))
    return sa.or_(*found)


def fence_of(row: Row) -> Values:
    return {**row.key._asdict(), "version": row.version}


def held_fence(claim: Claim) -> Values:
    return {**fence_of(claim.row), "picked_by": claim.holder}


def fences_in(rows: Iterable[Sequence[Any]]) -> set[Fence]:
    """Return the fences in rows of name, instance and version."""
    return {Fence(Key(name, instance), version) for name, instance, version in rows}


def claimed(
    columns: Sequence[Any],
    before: int,
    size: int | None,
    request: ClaimRequest,
    now: datetime,
) -> Row:
    """Return a row as this claim writes it, with its flaw, if any: of its columns, its version
    before, and the size of its payload.
    """
    row = row_of(columns)
    row.version = max(min(before, LAST_VERSION) + 1, to_micros(now))
    row.attempt = min(row.attempt, LAST_ATTEMPT) + 1
    row.picked = True
    row.picked_by = request.holder
    row.last_heartbeat = now
    row.lease = request.lease
    if row.is_plan and row.slot is not None:
        row.watermark = max(row.watermark or row.slot, row.slot)
    row.flaw = _flaw(row, size) or row.flaw
    return row


def _flaw(row: Row, size: int | None) -> str | None:
    """Why a row that was just claimed must not run. Any writer of the table may have written it."""
    if size is not None and size > MOST_BYTES:
        return f"payload too large: {size} bytes, at most {PAYLOAD_LIMIT} are allowed"
    if row.version > LAST_VERSION:
        return "its version cannot rise further; give it a lower one"
    if row.attempt > LAST_ATTEMPT:
        return "its attempts cannot be counted; set attempt to 0"
    return None


def enters_at_once(row: Row, request: ClaimRequest, now: datetime) -> bool:
    """Whether a claim enters this row's slot into the ledger; else ``decide`` handles it."""
    if row.ledger_key is None or is_weighed(row, now, request.weighed, request.late):
        return False
    is_on_time = row.next_slot is None or row.next_slot > now
    return row.is_detached or row.attempt > 1 or is_on_time


def new_entry(row: Row, now: datetime, *, gives_up: bool) -> Values:
    """Return the ledger row of a claim's slot. A job that gives up is marked as running later."""
    return {
        **row.plan_key._asdict(),
        "slot": row.slot,
        "outcome": Outcome.CLAIMED if gives_up else Outcome.RUNNING,
        "reason": None,
        "origin": row.origin or Origin.SCHEDULE,
        "attempts": row.attempt,
        "collapsed": row.collapsed,
        "token": row.version,
        "worker": row.picked_by,
        "started": None if gives_up else now,
    }


def readable_lease(lease: sa.ColumnElement[timedelta]) -> sa.ColumnElement[timedelta]:
    """Return the lease, null if no driver could decode it: that must not stop heartbeats."""
    shortest = sa.literal(timedelta(0), lease.type)
    is_lease = lease.between(shortest, sa.literal(LONGEST_LEASE, lease.type))
    return sa.case((is_lease, lease)).label("lease")


def least(column: Expression, most: int) -> Expression:
    return sa.case((column > most, most), else_=column)
