"""Slots that will not run, entered one by one: a ledger row for one, a gap row for several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from slotwise.decide.slot_choice import of_gap, without
from slotwise.model.records import Gap, Row
from slotwise.model.vocabulary import PLANNED, Outcome
from slotwise.schedules.text import readable
from slotwise.store.dialects.conditions import of_key
from slotwise.store.dialects.port import Transaction
from slotwise.store.schema.rows import utc


def enter_gaps(at: Transaction, gaps: Sequence[tuple[Row, Gap]]) -> None:
    """As ``Dialect.gaps``."""
    for row, gap in gaps:
        for part in close_open_slots(at, row, gap):
            _enter_gap(at, row, part)


def _enter_gap(at: Transaction, row: Row, gap: Gap) -> None:
    place = {**row.plan_key._asdict(), "reason": gap.reason}
    if gap.count == 1:
        skipped = {"slot": gap.first, "outcome": Outcome.SKIPPED, "finished": at.now}
        at.dialect.insert_new(at.connection, at.dialect.tables.slots, place | skipped)
    elif not _extends_last(at, row, gap):
        several = {
            "first_slot": gap.first,
            "last_slot": gap.last,
            "count": gap.count,
            "created": at.now,
        }
        _enter_several(at, place | several)


def _enter_several(at: Transaction, values: Mapping[str, object]) -> None:
    """What was decided once is never undone: a gap only grows."""
    gaps = at.dialect.tables.gaps
    changed = ("last_slot", "count", "reason", "created")
    at.dialect.upsert(
        at.connection,
        gaps,
        values,
        again=lambda new: {name: new[name] for name in changed},
        where=lambda new: new["last_slot"] > gaps.c.last_slot,
    )


def _extends_last(at: Transaction, row: Row, gap: Gap) -> bool:
    """Extend the job's last gap by one that follows it, for the same reason; return whether it
    does.

    A slot of an earlier schedule may lie between.
    """
    if gap.after is None:
        return False
    gaps = at.dialect.tables.gaps
    slots = at.dialect.tables.slots.c
    between = sa.select(slots.slot).where(*of_key(slots, row.plan_key))
    between = between.where(slots.slot > gap.after, slots.slot < gap.first)
    last = gaps.update().where(
        *of_key(gaps.c, row.plan_key),
        gaps.c.last_slot == gap.after,
        gaps.c.reason == gap.reason,
        gaps.c.first_slot < gap.first,
        ~between.exists(),
    )
    count = gaps.c.count + gap.count
    extended = last.values(last_slot=gap.last, count=count, created=at.now)
    return at.connection.execute(extended).rowcount == 1


def close_open_slots(at: Transaction, row: Row, gap: Gap) -> list[Gap]:
    """End open slots of the gap that another claim left behind, because the queue was restored
    alone.

    Return the gap without them, in parts: they have their own rows.
    """
    slots = at.dialect.tables.slots.c
    found = at.dialect.tables.slots.update().where(
        *of_key(slots, row.plan_key),
        slots.slot >= gap.first,
        slots.slot <= gap.last,
        slots.finished.is_(None),
        (slots.token != row.version) | (slots.worker != row.picked_by),
        slots.origin.in_(PLANNED),
    )
    # A slot that never began is skipped, not lost.
    never_began = slots.started.is_(None)
    outcome = sa.case((never_began, Outcome.SKIPPED.value), else_=Outcome.LOST.value)
    ended = found.values(outcome=outcome, reason=gap.reason, finished=at.now)
    closed = at.dialect.reading(ended, slots.slot)(at.connection)
    schedule = readable(row.schedule) if closed else None
    if schedule is None:
        return [gap]
    holes = [(slot, slot) for slot in sorted(utc(slot) for (slot,) in closed)]
    return list(without(of_gap(schedule, gap), gap, holes))
