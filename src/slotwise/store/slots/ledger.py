"""The only author of the ledger: a function here, or a statement of a dialect, writes slots, gaps
and attempts.

Each function keeps three laws:

- A slot of a job that has ended stays as it is and never starts again, unless ``reopen`` lets it.
- A slot that may be held is written under its claim's token. Else the caller has locked the row of
  the slot in the queue, and no worker holds that row.
- Only ``prune`` and ``delete_expired`` delete ended slots: their rows keep them from running
  twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import sqlalchemy as sa

from slotwise.decide.pause import as_decided
from slotwise.model.records import Claim, Key, Row
from slotwise.model.vocabulary import Origin, Outcome, Reason
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.dialects.conditions import among_newest, of_key
from slotwise.store.dialects.port import Dialect, Transaction
from slotwise.store.schema.column_types import Instant
from slotwise.store.schema.rows import Change, expect, utc
from slotwise.store.schema.tables import Columns, Condition, Tables, of_plan
from slotwise.store.slots.counts import SLOT, Ended, by_hour, hour_of, total
from slotwise.store.slots.tuning import BATCH, LOOKED_AT

#: What another life of a one-time task changes in the ledger row of its id.
_ENDED_ANEW = ("outcome", "attempts", "token", "worker", "finished")


class Gone(NamedTuple):
    """What ``prune`` has deleted: how many rows, the newest slot of a job, and what to count."""

    rows: int
    newest: datetime | None
    ended: Mapping[Ended, int]


def complete(connection: Joinable, dialect: Dialect, claim: Claim) -> bool:
    """Write the success of a claim in the caller's transaction; return False if the claim was
    lost.

    A one-time task gets its ledger row here; the caller has locked its row.
    """
    slots = dialect.tables.slots
    ended = {"outcome": Outcome.SUCCEEDED, "finished": dialect.ago(connection)}
    if claim.row.ledger_key is not None:
        mine = [
            *dialect.conditions.entry_of(claim),
            slots.c.outcome == Outcome.RUNNING,
        ]
        written = slots.update().where(*mine).values(**ended)
        return connection.execute(written).rowcount == 1
    values = task_entry(claim) | {"attempts": claim.row.attempt, **ended}
    return dialect.upsert(
        connection,
        slots,
        values,
        lambda new: {name: new[name] for name in _ENDED_ANEW},
    )


def task_entry(claim: Claim) -> dict[str, object]:
    """Return what the ledger has of a one-time task that ends under this claim, but its end."""
    row = claim.row
    return {
        **row.key._asdict(),
        "slot": row.slot,
        "origin": Origin.TASK,
        "token": claim.token,
        "worker": claim.holder,
        "started": claim.claimed_at,
    }


def remember_attempts(at: Transaction, ended: Sequence[Mapping[str, object]]) -> None:
    """Write how attempts have ended. The caller has settled their claims in this transaction,
    under their fences.

    An attempt that is known keeps its end: a queue that was restored alone holds its claim again,
    and loses it.
    """
    if ended:
        at.dialect.insert_missing(at.connection, at.dialect.tables.attempts, ended)


def remember_tasks(at: Transaction, ended: Sequence[Mapping[str, object]]) -> None:
    """Write one-time tasks that have ended as slots, under the same condition; a later life of an
    id replaces it.
    """
    if ended:
        at.dialect.replace_all(at.connection, at.dialect.tables.slots, ended)


def forget_task(at: Transaction, row: Row) -> None:
    """Delete the success that complete_in has written for a one-time task without a record."""
    slots = at.dialect.tables.slots
    mine = [*at.dialect.conditions.at(row.history_key), slots.c.token == row.version]
    deleted = at.connection.execute(slots.delete().where(*mine)).rowcount
    expect(deleted, 1, row)


def disown(at: Transaction, row: Row) -> bool:
    """End the attempt of a running slot whose token no row holds, since the queue was restored
    alone.

    Return whether it was one. The slot stays open, for the caller's claim.
    """
    slots = at.dialect.tables.slots.c
    holders = at.dialect.tables.tasks.alias("holders")
    held = sa.exists().where(
        holders.c.task_name == slots.task_name,
        holders.c.version == slots.token,
        holders.c.picked,
        holders.c.task_instance != row.task_instance,
    )
    is_lost = _write_open(
        at,
        row,
        slots.outcome == Outcome.RUNNING,
        ~held,
        outcome=Outcome.LOST,
        reason=Reason.RERUN,
        lost=slots.lost + 1,
    )
    if is_lost:
        _remember_lost(at, row)
    return is_lost


def _remember_lost(at: Transaction, row: Row) -> None:
    """Copy the slot of this row, which was just lost, as an attempt."""
    slots = at.dialect.tables.slots
    same = (*slots.primary_key.columns.keys(), "token", "worker", "started")
    names = (*same, "number", "claimed", "ended", "outcome", "reason")
    before = [slots.c[name] for name in (*same, "attempts", "started")]
    ended = at.dialect.ago(at.connection)
    mine = at.dialect.conditions.at(row.ledger_key)
    lost = sa.select(*before, ended, slots.c.outcome, slots.c.reason)
    lost = lost.where(*mine, slots.c.token.is_not(None))
    attempts = at.dialect.tables.attempts
    at.connection.execute(attempts.insert().from_select(names, lost))


def end_unbegun(at: Transaction, row: Row, outcome: Outcome, reason: str) -> None:
    """End a slot that has not begun, also if it is not in the ledger. The caller has locked its
    waiting row.

    A reopened slot ends as before. A running one belongs to another claim.
    """
    known = at.dialect.tables.slots.c.outcome
    ended = sa.case((known == Outcome.CLAIMED, outcome.value), else_=known)
    if not _write_open(
        at,
        row,
        known != Outcome.RUNNING,
        outcome=ended,
        reason=reason,
        finished=at.now,
    ):
        _enter_ended(at, row, outcome=outcome, reason=reason, finished=at.now)


def put_off(at: Transaction, row: Row, reason: str | None) -> None:
    """Write why a gate delays a slot that was handed back. The caller has claimed its row."""
    _write_open(
        at, row, at.dialect.tables.slots.c.outcome == Outcome.CLAIMED, reason=reason
    )


def cancel_retry(at: Transaction, row: Row, reason: str) -> None:
    """End a slot that waits for its next attempt. The caller has locked its row, which no worker
    holds.
    """
    _write_open(at, row, outcome=Outcome.CANCELLED, reason=reason, finished=at.now)


def reopen(
    at: Transaction, plan: Row, chosen: Sequence[datetime], reason: str
) -> None:
    """Let ended slots of a plan run again; they keep their outcomes until they start.

    The caller has locked the plan row, and creates a row for each of them in this transaction.
    """
    slots = at.dialect.tables.slots
    for start in range(0, len(chosen), BATCH):
        at.connection.execute(
            slots.update()
            .where(*of_key(slots.c, plan))
            .where(
                slots.c.slot.in_(chosen[start : start + BATCH]),
                slots.c.finished.is_not(None),
            )
            .values(finished=None, reason=reason)
        )


def close_reopened(at: Transaction, row: Row) -> None:
    """End a reopened slot whose job starts it only once; it keeps its outcome. The caller has
    claimed its row.

    A claimed or running slot belongs to another claim.
    """
    is_over = at.dialect.tables.slots.c.outcome.not_in(
        (Outcome.CLAIMED, Outcome.RUNNING)
    )
    _write_open(
        at, row, is_over, reason=Reason.GIVE_UP, finished=row.last_failure or at.now
    )


def raise_token(at: Transaction, row: Row, token: int) -> None:
    """Take a held slot from its holder. The caller has locked the row, and writes the same token
    there.
    """
    slots = at.dialect.tables.slots
    mine = [*at.dialect.conditions.at(row.ledger_key), slots.c.token == row.version]
    at.connection.execute(slots.update().where(*mine).values(token=token))


def end_orphans(at: Transaction, plan: Key) -> None:
    """End those of the newest slots that are open and have no row: as lost, or as cancelled if
    they never began.
    """
    asked = {"plan_name": plan.task_name, "plan_of": plan.task_instance, "now": at.now}
    at.connection.execute(_ending(at.dialect.tables), asked)


def end_stranger(at: Transaction, change: Change) -> None:
    """End a claim that the ledger does not know, and slots begun since: the queue was restored
    alone.
    """
    row = change.held.row
    record = change.transition.record
    if record is not None and record.final and not is_in_a_gap(at, row):
        _enter_ended(
            at,
            row,
            outcome=record.outcome,
            reason=record.reason,
            error=record.error,
            attempts=record.attempts,
            lost=record.lost,
            token=row.version,
            worker=row.picked_by,
            finished=at.now,
        )
    end_orphans(at, row.plan_key)


def caught_up(at: Transaction, rows: Sequence[Row]) -> list[Row]:
    """Return locked plan rows as of the newest slots that ledger and gaps have decided.

    A row is behind them only if the queue was restored alone. What it then owes is decided: no gap
    covers it again.
    """
    newest = (
        at.dialect.newest_decided(at.connection, [row.key for row in rows], ())
        if rows
        else ()
    )
    return [as_decided(row, at) for row, at in zip(rows, newest, strict=True)]


def delete_expired(connection: sa.Connection, dialect: Dialect, limit: int) -> int:
    """Delete the oldest one-time tasks whose results have expired; return how many. Locked rows
    stay.
    """
    expires = dialect.tables.slots.c.expires
    is_old = expires <= dialect.now(connection)
    first = deletion_of_first(connection, dialect, expires, limit, is_old)
    return connection.execute(first).rowcount


def deletion_of_first(
    connection: sa.Connection,
    dialect: Dialect,
    order: sa.Column[datetime],
    limit: int,
    *conditions: Condition,
) -> sa.Delete:
    """Return the deletion of the first rows, in the order of a column, that meet the conditions.
    Locked rows stay.
    """
    table = order.table
    key = sa.select(*table.primary_key.columns).where(*conditions)
    first = key.order_by(order).limit(limit)
    return table.delete().where(dialect.locked(connection, first))


def prune(
    connection: sa.Connection,
    dialect: Dialect,
    history: sa.Table,
    order: sa.Column[datetime],
    old: Sequence[sa.ColumnElement[bool]],
    limit: int,
) -> Gone:
    """Delete the first of these old slots, with their attempts, or gaps. Locked rows stay."""

    def taken(*more: Condition) -> sa.Delete:
        return deletion_of_first(connection, dialect, order, limit, *old, *more)

    if history is not dialect.tables.slots:
        columns = ("task_name", "first_slot", "last_slot", "count", "reason")
        gaps = dialect.reading(taken(), *(history.c[name] for name in columns))
        rows = gaps(connection)
        pieces = (
            by_hour(name, utc(first), utc(last), count, reason)
            for name, first, last, count, reason in rows
        )
        return Gone(len(rows), None, total(chain.from_iterable(pieces)))
    # Most are tasks that succeeded at once: nothing is read of them.
    attempts = dialect.tables.attempts
    tries = history.c.attempts + history.c.lost + history.c.aborted
    is_untried = tries == sa.case((history.c.outcome == Outcome.SUCCEEDED, 1), else_=0)
    is_plain = sa.and_(history.c.origin == Origin.TASK, is_untried)
    count = connection.execute(taken(is_plain)).rowcount
    gone = dialect.reading(
        taken(~is_plain),
        *history.primary_key.columns,
        history.c.origin,
        history.c.outcome,
        history.c.reason,
        is_untried,
    )
    found = [
        (name, instance, utc(slot), *rest)
        for name, instance, slot, *rest in gone(connection)
    ]
    if tried := [row[:3] for row in found if not row[-1]]:
        key = attempts.c.task_name, attempts.c.task_instance, attempts.c.slot
        connection.execute(attempts.delete().where(sa.tuple_(*key).in_(tried)))
    newest: datetime | None = None
    ended = Counter[Ended]()
    for name, _, slot, origin, outcome, reason, _ in found:
        if origin != Origin.TASK:
            newest = slot if newest is None else max(newest, slot)
            ended[Ended(name, hour_of(slot), SLOT, outcome, reason or "")] += 1
    return Gone(count + len(found), newest, ended)


def prune_attempts(
    connection: sa.Connection, dialect: Dialect, before: datetime, limit: int
) -> int:
    """Delete old attempts whose slot the ledger does not have: those of tasks, which leave no slot
    if they succeed.
    """
    attempts = dialect.tables.attempts
    slots = dialect.tables.slots
    mine = *of_key(slots.c, attempts.c), slots.c.slot == attempts.c.slot
    its_slot = sa.exists().where(*mine)
    is_old = attempts.c.ended < before
    first = deletion_of_first(
        connection, dialect, attempts.c.ended, limit, is_old, ~its_slot
    )
    return connection.execute(first).rowcount


def has_orphans(tables: Tables) -> Condition:
    """Whether a plan row, in a statement that reads it, has slots for ``end_orphans``."""
    slots = tables.slots.c
    plan = tables.tasks
    rows = plan.alias("standing").c
    stands = _has_row(rows, slots.task_name, slots.task_instance, slots.slot)
    mine = [
        *of_key(slots, plan.c),
        slots.finished.is_(None),
        ~stands,
        among_newest(tables, lambda newest: of_key(newest, plan.c), LOOKED_AT),
    ]
    return sa.select(slots.slot).where(*mine).correlate(plan).exists()


@lru_cache(maxsize=16)
def _ending(tables: Tables) -> sa.Update:
    """Return the statement of ``end_orphans``, built once."""
    slots = tables.slots.c
    rows = tables.tasks.alias("standing").c
    name = sa.bindparam("plan_name", type_=sa.Text)
    instance = sa.bindparam("plan_of", type_=sa.Text)
    plan = [slots.task_name == name, slots.task_instance == instance]
    newest = sa.select(slots.slot).where(*plan).order_by(slots.slot.desc())
    looked_at = newest.limit(LOOKED_AT).subquery("newest")
    orphans = tables.slots.update().where(
        *plan,
        slots.slot.in_(sa.select(looked_at.c.slot)),
        slots.finished.is_(None),
        ~_has_row(rows, name, instance, slots.slot),
    )
    began = slots.started.is_not(None)
    return orphans.values(
        outcome=sa.case((began, Outcome.LOST.value), else_=Outcome.CANCELLED.value),
        reason=Reason.ORPHANED,
        lost=slots.lost + sa.case((began, 1), else_=0),
        finished=sa.bindparam("now", type_=Instant),
    )


def _has_row(rows: Columns, name: object, instance: object, slot: object) -> sa.Exists:
    its_own = rows.task_name == name, rows.slot == slot, of_plan(rows, instance)
    return sa.exists().where(*its_own)


def _write_open(
    at: Transaction, row: Row, *conditions: Condition, **values: object
) -> bool:
    """Write the slot of this row if it is open; return whether it was."""
    slots = at.dialect.tables.slots
    written = slots.update().where(
        *at.dialect.conditions.at(row.ledger_key),
        slots.c.finished.is_(None),
        *conditions,
    )
    return at.connection.execute(written.values(**values)).rowcount == 1


def is_in_a_gap(at: Transaction, row: Row) -> bool:
    """Return whether the slot of this row was skipped together with others."""
    gaps = at.dialect.tables.gaps.c
    covers = gaps.first_slot <= row.slot, gaps.last_slot >= row.slot
    return bool(
        at.connection.scalar(
            sa.select(sa.exists().where(*of_key(gaps, row.plan_key), *covers))
        )
    )


def _enter_ended(at: Transaction, row: Row, **values: object) -> None:
    """Insert the slot of this row as ended, unless the ledger has it."""
    slot = {
        **row.plan_key._asdict(),
        "slot": row.slot,
        "origin": row.origin or Origin.SCHEDULE,
    }
    at.dialect.insert_new(at.connection, at.dialect.tables.slots, slot | values)
