"""Engines with one rule taken out: the laws must find each of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

import sqlalchemy as sa
from tests.simulation.agent import SimulatedWorker

from slotwise.decide.fast_finish import FastFinish
from slotwise.model.records import Claim, Fence, Gap, Row
from slotwise.store.dialects.dialect import Dialect
from slotwise.store.dialects.sqlite import SQLite
from slotwise.store.schema.rows import CHANGED_COLUMNS, Change, Held, row_of
from slotwise.store.slots.settlement_values import Settlement, Silence


class SettlesBlindly(SQLite):
    """Finds the row to settle by its key alone: neither version nor holder matter. No end is usual to it."""

    def advance(
        self, connection: sa.Connection, endings: Sequence[tuple[Claim, FastFinish]]
    ) -> tuple[str | None, set[Fence]]:
        del connection, endings
        return None, set()

    def hold(self, connection: sa.Connection, claims: Sequence[Claim], *, wait: bool) -> list[Held]:
        del wait
        now, found = self.now(connection), []
        for claim in claims:
            values = connection.execute(sa.select(*self.row_columns).where(*self._key(claim.row))).first()
            if values is not None:
                row = replace(row_of(values), version=claim.token, picked_by=claim.holder)
                found.append(Held(row=row, now=now))
        return found

    def release(self, connection: sa.Connection, changes: Sequence[Change]) -> int:
        tasks = self.tables.tasks
        for change in changes:
            mine, columns = self._key(change.held.row), change.transition.row
            if columns is None:
                connection.execute(tasks.delete().where(*mine))
                continue
            values = {name: columns[name] for name in CHANGED_COLUMNS if name in columns}
            free = {"picked": False, "picked_by": None, "last_heartbeat": None, "version": tasks.c.version + 1}
            connection.execute(tasks.update().where(*mine).values(**values, **free))
        return len(changes)

    def record(self, connection: sa.Connection, changes: Sequence[Change]) -> None:
        slots = self.tables.slots
        for change in changes:
            if (key := change.ledger_key) is not None:
                token = connection.scalar(sa.select(slots.c.token).where(*self._at(key)))
                row = replace(change.held.row, version=token or 0)
                super().record(connection, [replace(change, held=replace(change.held, row=row))])

    def _key(self, row: Row) -> list[sa.ColumnElement[bool]]:
        tasks = self.tables.tasks
        return [tasks.c.task_name == row.task_name, tasks.c.task_instance == row.task_instance]


class AdvancesBlindly(SQLite):
    """Lets a plan row go on whoever holds it: neither version nor holder matter, nor what the ledger says."""

    def advance(
        self, connection: sa.Connection, endings: Sequence[tuple[Claim, FastFinish]]
    ) -> tuple[str | None, set[Fence]]:
        tasks, slots, now = self.tables.tasks, self.tables.slots, self.now(connection)
        for claim, following in endings:
            mine = [tasks.c.task_name == claim.row.task_name, tasks.c.task_instance == claim.row.task_instance]
            moved = {"execution_time": following.due, "slot": following.slot, "next_slot": following.next_slot}
            free = {"picked": False, "picked_by": None, "last_heartbeat": None, "version": tasks.c.version + 1}
            connection.execute(tasks.update().where(*mine).values(**moved, **free, attempt=0))
            assert claim.row.ledger_key is not None
            ended = slots.update().where(*self._at(claim.row.ledger_key))
            connection.execute(ended.values(outcome="succeeded", finished=now))
        return None, {claim.fence for claim, _ in endings}


class NeverConflicts(SQLite):
    """Writes the ledger row of a claim over whatever is there."""

    def enter(self, connection: sa.Connection, row: Row, now: datetime, *, strict: bool) -> bool:
        slots = self.tables.slots
        connection.execute(slots.delete().where(slots.c.task_name == row.task_name, slots.c.slot == row.slot))
        return super().enter(connection, row, now, strict=strict)


class ForgetsGaps(SQLite):
    """Drops what did not run."""

    def gaps(self, connection: sa.Connection, gaps: Iterable[tuple[Row, Gap]], now: datetime) -> None:
        del connection, gaps, now


def reaps_without_looking_again(worker: SimulatedWorker) -> None:
    """Takes over who was silent, also if it has stirred since."""
    take_over = worker.store.take_over

    def careless(silences: Sequence[Silence]) -> list[Settlement]:
        _, rows = worker.store.look(sorted(worker.store.definitions))
        beats = {(row.key, row.version): row.last_heartbeat for row in rows}
        return take_over([
            replace(silence, row=replace(silence.row, last_heartbeat=beats.get((silence.row.key, silence.row.version))))
            for silence in silences
        ])  # fmt: skip

    worker.store.take_over = careless  # type: ignore[method-assign]


def starts_without_a_mark(worker: SimulatedWorker) -> None:
    """Believes that its claim still stands, and does not ask."""
    worker.trust_marks()


def never_reaps(worker: SimulatedWorker) -> None:
    """Leaves the dead what they held."""
    worker.store.take_over = lambda silences: []  # type: ignore[method-assign]


def forgets_its_distance(worker: SimulatedWorker) -> None:
    """Starts a retry however near that is to another slot's start."""
    worker.store._min_interval.defer = lambda connection, row, now: None  # type: ignore[method-assign]


#: Dialects with a rule taken out; and what is done to a worker's store. The last one shows where queues are restored.
DIALECTS: list[type[Dialect]] = [SettlesBlindly, AdvancesBlindly, ForgetsGaps]
SABOTAGES = [reaps_without_looking_again, starts_without_a_mark, never_reaps, forgets_its_distance]
AFTER_RESTORES: list[type[Dialect]] = [NeverConflicts]
