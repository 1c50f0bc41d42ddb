"""From columns to values: which columns a row is read with, and how it becomes a Row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from slotwise.model.records import LedgerKey, Row, Transition

#: What is read of a row, in this order, by every statement that returns rows.
ROW_COLUMNS = (
    "task_name", "task_instance", "execution_time", "version", "picked", "picked_by", "task_data",
    "last_success", "last_failure", "consecutive_failures", "last_heartbeat", "priority", "kind", "slot", "watermark",
    "next_slot", "schedule", "plan_instance", "origin", "collapsed", "created_version", "attempt", "lost_count",
    "lease", "state", "cancel_requested", "control", "parked_due", "wanted_due", "unheld_since", "marked", "pending",
)  # fmt: skip

#: What is read of a row when only the hold on it matters: no payload travels.
HOLD_COLUMNS = (
    "task_name", "task_instance", "execution_time", "version", "picked", "picked_by", "last_heartbeat", "lease",
    "kind", "slot", "attempt", "schedule", "plan_instance", "cancel_requested", "control", "pending",
)  # fmt: skip

#: What a transition may change on a row, with the PostgreSQL type of each.
CHANGED_COLUMNS = {
    "execution_time": "timestamptz", "slot": "timestamptz", "next_slot": "timestamptz", "watermark": "timestamptz",
    "schedule": "text", "origin": "text", "collapsed": "bigint", "attempt": "integer", "lost_count": "integer",
    "state": "text", "control": "bigint", "parked_due": "timestamptz", "consecutive_failures": "integer",
    "unheld_since": "timestamptz",
    "last_success": "timestamptz", "last_failure": "timestamptz", "last_error": "text", "pending": "json",
}  # fmt: skip

#: What of a row stands in ``pending``: values of a slot in trouble, which no statement compares or counts.
PENDING = ("trying_since", "catch_up_until", "called_off")

#: What a plan row whose slot succeeded on time is checked against, and moved on to.
ADVANCED = {
    "slot": "timestamptz", "schedule": "text", "due": "timestamptz", "next_slot": "timestamptz",
    "after_next": "timestamptz",
}  # fmt: skip

_DECIDED = ("slot", "next_slot", "watermark", "origin", "collapsed", "attempt", "lost_count", *PENDING)

#: What a settlement writes in the ledger, with the PostgreSQL type of each; and which of them are counts, added to.
RECORDED_COLUMNS = {
    "outcome": "text", "reason": "text", "error": "text", "attempts": "integer", "lost": "integer",
    "aborted": "integer", "finished": "timestamptz",
}  # fmt: skip
ADDED_COLUMNS = ("lost", "aborted")


def utc(value: object) -> Any:
    """A caller's connection gives instants in its session's zone, ours give UTC; arithmetic is only safe in UTC."""
    if not isinstance(value, datetime) or value.tzinfo is UTC:
        return value
    return value.astimezone(UTC)


def stored(row: Row, columns: Mapping[str, Any]) -> dict[str, Any]:
    """The changes of a row as they are written: what stands in ``pending`` as one document, None without trouble."""
    if columns.keys().isdisjoint(PENDING):
        return dict(columns)
    given = {name: columns.get(name, getattr(row, name)) for name in PENDING}
    pending = {
        name: value.isoformat() if isinstance(value, datetime) else value for name, value in given.items() if value
    }
    others = {name: value for name, value in columns.items() if name not in PENDING}
    return others | {"pending": pending or None}


def decided(row: Row) -> dict[str, Any]:
    """What the decision about a late slot writes on the row that was claimed."""
    return stored(row, {name: getattr(row, name) for name in _DECIDED})


def waits_on(pending: Mapping[str, str] | None) -> dict[str, Any]:
    """The values that stand in ``pending``. A key of another release is not read."""
    found: dict[str, Any] = {name: pending[name] for name in PENDING if name in pending} if pending else {}
    return {name: value if name == "called_off" else datetime.fromisoformat(value) for name, value in found.items()}


def row_of(values: Sequence[Any]) -> Row:
    """A Row of values that come in the order of ROW_COLUMNS."""
    found = dict(zip(ROW_COLUMNS, values, strict=True))
    found["consecutive_failures"] = found["consecutive_failures"] or 0
    found |= waits_on(found.pop("pending"))
    return Row(**found)


def hold_of(values: Sequence[Any]) -> Row:
    """A Row of values that come in the order of HOLD_COLUMNS, whatever they are; the rest is left at its default."""
    found = dict(zip(HOLD_COLUMNS, values, strict=True))
    pending = found.pop("pending")
    return Row(**found, called_off=pending.get("called_off") if isinstance(pending, dict) else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A row that this transaction has locked, as it stands now.

    ``place`` is where the database keeps it; ``transaction_id`` asks later whether this transaction committed.
    """

    row: Row
    now: datetime
    place: str | None = None
    transaction_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A held row and what becomes of it. ``stranger``: the ledger does not know this claim of its slot."""

    held: Held
    transition: Transition
    ledger_place: str | None = None
    stranger: bool = False

    @property
    def ledger_key(self) -> LedgerKey | None:
        return self.held.row.ledger_key

    @property
    def never_began(self) -> bool:
        """This claim's attempt does not count: the ledger's start is again that of the one before."""
        record = self.transition.record
        return record is not None and record.attempts < self.held.row.attempt

    @property
    def forgets(self) -> bool:
        """Nothing of the slot is to stay in the ledger that only this claim has told."""
        return self.transition.record is not None and self.transition.record.forget

    @property
    def recorded(self) -> dict[str, Any]:
        """What is written in the ledger, by RECORDED_COLUMNS."""
        record = self.transition.record
        assert record is not None
        columns = {name: getattr(record, name) for name in RECORDED_COLUMNS if name != "finished"}
        return {**columns, "finished": self.held.now if record.final else None}


def ledger_instance(row: Row) -> str:
    """Under which instance the ledger keeps this row's slots: the plan row's, for a detached one too."""
    return row.plan_instance or row.task_instance


def expect(written: int, expected: int, row: Row) -> None:
    """Rows that this transaction has locked cannot slip away; if one does, nothing of it may be committed."""
    if written != expected:
        raise RuntimeError(f"wrote {written} of {expected} locked rows around {row.key}; nothing is committed")
