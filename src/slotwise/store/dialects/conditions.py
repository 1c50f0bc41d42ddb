"""Conditions of single rows, as parts of statements; they are the same in every database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TypeAlias

import sqlalchemy as sa

from slotwise.model.records import EARLIEST, Claim, Key, LedgerKey, Row
from slotwise.model.vocabulary import Outcome, PauseScope
from slotwise.store.schema.tables import (
    PAUSED_KEY,
    Columns,
    Condition,
    Expression,
    Tables,
)

All: TypeAlias = list[Condition]


def of_key(rows: Columns, row: Key | LedgerKey | Row | Columns) -> All:
    """Whether a row has the key of this row, which may be one of another table."""
    return [rows.task_name == row.task_name, rows.task_instance == row.task_instance]


def among_newest(
    tables: Tables, mine: Callable[[Columns], All], number: int
) -> Condition:
    """Whether a row of the ledger is among so many of the newest of a plan row that meet these
    conditions. In FROM, MySQL allows no reference to the row of the statement around it.
    """
    newest = tables.slots.alias("newest").c
    query = sa.select(newest.slot).where(*mine(newest)).correlate(tables.tasks)
    oldest = query.order_by(newest.slot.desc()).limit(1).offset(number - 1)
    first = sa.literal(EARLIEST, newest.slot.type)
    return tables.slots.c.slot >= sa.func.coalesce(oldest.scalar_subquery(), first)


class Conditions:
    """The conditions on the tables of one prefix and schema."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._tasks = tables.tasks
        self._slots = tables.slots

    def under(self, row: Row, holder: str | None) -> All:
        """Whether a row is held under this token by this holder, or was until just now."""
        return [
            *of_key(self._tasks.c, row),
            self._tasks.c.version == row.version,
            self._tasks.c.picked_by == holder,
        ]

    def held(self, claim: Claim) -> All:
        return [*self.under(claim.row, claim.holder), self._tasks.c.picked]

    def at(self, key: LedgerKey | None) -> All:
        assert key is not None  # one-time tasks have no row there
        return [*of_key(self._slots.c, key), self._slots.c.slot == key.slot]

    def entry_of(self, claim: Claim) -> All:
        mine = self.at(claim.row.ledger_key)
        return [
            *mine,
            self._slots.c.token == claim.token,
            self._slots.c.worker == claim.holder,
        ]

    def open_entry(self, row: Row) -> All:
        """The ledger row of this claim, as long as its slot has not ended."""
        return [
            *self.at(row.ledger_key),
            self._slots.c.token == row.version,
            self._slots.c.finished.is_(None),
        ]

    def may_start(self, *, gives_up: bool) -> Condition:
        """Whether a slot that the ledger has already may start: it has not ended and does not run.
        One of a job that gives up was never started.
        """
        slots = self._slots.c
        was_never_started = sa.literal(not gives_up) | (slots.attempts == 0)
        is_open = slots.finished.is_(None)
        return is_open & (slots.outcome != Outcome.RUNNING) & was_never_started

    def waiting(self, by: datetime | None = None) -> All:
        """Whether a row waits, and is due by then."""
        tasks = self._tasks.c
        due = () if by is None else (tasks.execution_time <= by,)
        return [~tasks.picked, tasks.state.is_(None), *due]

    def not_all_paused(self) -> Condition:
        """Whether claims are not paused altogether; evaluated once per statement, not per row."""
        return ~sa.exists().where(self._tables.meta.c.key == PAUSED_KEY)

    def of_no_paused_tasks(self, now: Expression | datetime) -> Condition:
        """Whether a row is of no name of one-time tasks that is paused now."""
        return self._tasks.c.task_name.not_in(self.paused_tasks(now))

    def paused_tasks(self, now: Expression | datetime) -> sa.Select[str]:
        """Find the names of one-time tasks that are paused now; these are few."""
        pauses = self._tables.pauses.c
        lasts = pauses.until.is_(None) | (pauses.until > now)
        return sa.select(pauses.task_name).where(
            pauses.scope == PauseScope.TASKS, lasts
        )
