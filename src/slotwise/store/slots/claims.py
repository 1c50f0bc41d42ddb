"""Claims: due rows become held ones, in batches, and one by one where a row spoils its batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from slotwise import decide
from slotwise.errors import InvalidSchedule
from slotwise.model.records import Claim, Gap, HandedBack, Key, Row
from slotwise.model.vocabulary import Reason
from slotwise.store.connect.database_errors import describe, is_about_a_row
from slotwise.store.dialects.queue_cursors import Range
from slotwise.store.schema.rows import is_unusable, refuse_unusable
from slotwise.store.schema.tables import HAS_SLOT, IS_TASK
from slotwise.store.slots.batch_size import BatchSize
from slotwise.store.slots.gates import Gates
from slotwise.store.slots.late_claims import LateClaims
from slotwise.store.slots.settlements import claim_of

if TYPE_CHECKING:
    from slotwise.store.slots.store import Store

#: At most so many rows in one statement: above it PostgreSQL's plans are at risk, below it nothing is gained.
BATCH = 500

#: Told of slots that will not run.
OnSkipped: TypeAlias = Callable[[Row, Gap], None]

logger = logging.getLogger(__name__)

#: From so many names on, a look at what is due comes before the claim.
MANY = 200


def _nobody(row: Row, gap: Gap) -> None:
    """Is told."""


class Claims:
    """Takes what is due."""

    def __init__(self, store: Store) -> None:
        self.dialect, self._due = store.dialect, store.due
        self.transaction, self.schedule_of, self._warnings = store.transaction, store.schedule_of, store.warnings
        database, definitions = store.database, store.definitions
        self._gates = Gates(self.dialect, definitions, database.settings)
        self._late_claims = LateClaims(self.dialect, definitions, self._gates, self._warnings, store.poll)
        #: Jobs of which each new slot is decided on, or asked about at a gate.
        self._weighed = self._gates.names.union(name for name, found in definitions.items() if found.is_weighed)
        self._batch_size = BatchSize(BATCH)
        #: As the last claim of one-time tasks has seen it; who finds none has not looked.
        self.slots_may_be_due = True
        self._strict = tuple(sorted(name for name, found in definitions.items() if found.gives_up))

    def claim(
        self,
        holder: str,
        limit: int,
        *,
        lease: timedelta,
        names: Sequence[str],
        lost: int = 1,
        on_skipped: OnSkipped = _nobody,
    ) -> tuple[int, list[Claim]]:
        """Take up to ``limit`` due rows of these tasks: how many were found, and the claims that may start.

        Slots come before one-time tasks. Rows that turn out to have nothing to run (their slot ran already, their
        text cannot be read) are moved on in the same transaction and are not among the claims. Of rows whose holder
        has died before, at most ``lost`` are taken. ``on_skipped`` is told, once it is committed, which slots will not
        run.
        """
        found, claims = self.claim_slots(holder, limit, lease=lease, names=names, lost=lost, on_skipped=on_skipped)
        queued = self.claim_tasks(holder, limit - found, lease=lease, names=self._due.tasks_of(names))
        return found + len(queued), claims + queued

    def claim_tasks(
        self,
        holder: str,
        limit: int,
        *,
        lease: timedelta,
        names: Sequence[str],
        ranges: Sequence[Range] | None = None,
    ) -> list[Claim]:
        """As ``claim``, and one-time tasks alone, without those whose holder has died before.

        ``ranges``: of rows behind these marks nothing is said; see ``marks.py``.
        """
        limit = min(limit, BATCH)
        if limit <= 0 or not names:
            return []
        try:
            is_bounded = self._gates.may_bound(names)
            with self.transaction() if is_bounded else self._due.look() as connection:
                limit = self._gates.room(names, limit, connection) if is_bounded else limit
                if limit == 0:
                    return []
                rows, self.slots_may_be_due = self.dialect.claim_tasks(
                    connection, holder=holder, names=names, limit=limit, lease=lease, ranges=ranges
                )
                if is_bounded and rows:
                    stopped = self._stopped(connection, rows, rows[0].last_heartbeat or rows[0].execution_time)
                    rows = [row for row in rows if row.key not in stopped]
        except Exception as error:
            if not is_about_a_row(error):
                raise
            return self._claim_apart(holder, names, limit, lease, _nobody, lost=0, kind=IS_TASK)[1]
        claims = [
            Claim(row=row, holder=holder, lease=lease, claimed_at=row.last_heartbeat or row.execution_time)
            for row in rows
        ]
        unusable = [claim for claim in claims if is_unusable(claim.row)]
        for claim in unusable:
            self._let_go_aside(claim)
        return [claim for claim in claims if claim not in unusable] if unusable else claims

    def _let_go_aside(self, claim: Claim) -> None:
        """Of a task that is held, and that nobody can run: it is dead, and says why.

        Race: this process may end before; then it is a held row, and a reaper comes to the same.
        """
        row = claim.row
        try:
            refuse_unusable({"slot": row.slot, "version": row.version})
        except ValueError as error:
            if self._warnings.are_new(claim.key, str(error)):
                logger.exception("%s/%s cannot be run and is set aside: %s", *claim.key, error)
            with self.transaction() as connection:
                self.dialect.by_row.let_go_aside(connection, claim, HandedBack(Reason.UNREADABLE), str(error))

    def claim_slots(
        self,
        holder: str,
        limit: int,
        *,
        lease: timedelta,
        names: Sequence[str],
        lost: int = 1,
        on_skipped: OnSkipped = _nobody,
    ) -> tuple[int, list[Claim]]:
        """As ``claim``, and slots alone: those of jobs, and of tasks that recur; and whatever was lost before."""
        limit, is_level = min(limit, self._batch_size.size), False
        if len(names) > MANY:
            names, is_level = self._due.names(names)
            if not names:
                return 0, []
        try:
            return self._claim(holder, names, limit, lease, on_skipped, lost=lost, is_level=is_level)
        except Exception as error:
            if not is_about_a_row(error):
                raise
        return self._claim_apart(holder, names, limit, lease, on_skipped, lost=lost)

    def _claim(
        self,
        holder: str,
        names: Sequence[str],
        limit: int,
        lease: timedelta,
        on_skipped: OnSkipped,
        *,
        lost: int,
        instance: str | None = None,
        is_level: bool = False,
    ) -> tuple[int, list[Claim]]:
        skipped: list[tuple[Row, Gap]] = []
        with self.transaction() as connection:
            limit = self._gates.room(names, limit, connection)
            if limit == 0:
                return 0, []
            found = self.dialect.claim(
                connection, holder=holder, names=names, strict=self._strict, weighed=self._weighed_of(names),
                late=self._gates.late, limit=limit, lease=lease, lost=lost, instance=instance, is_level=is_level,
            )  # fmt: skip
            claimed_at, begun = found[0][1] if found else None, self.dialect.clock.elapsed()
            late = [(row, entered) for row, _, entered in found if not (entered and self._can_read(row))]
            decided = self._start_late(connection, late, claimed_at, skipped) if claimed_at and late else {}
            started = [one for row, _, _ in found if (one := decided.get(row.key, row)) is not None]
            if claimed_at and self._gates.may_bound(names):
                entered = [row for row in started if row.key not in decided]
                stopped = self._stopped(connection, entered, claimed_at)
                started = [row for row in started if row.key not in stopped]
            self._batch_size.learn(len(found), len(late), self.dialect.clock.elapsed() - begun, lease)
        for row, gap in skipped:
            on_skipped(row, gap)
        claims = [Claim(row=row, holder=holder, lease=lease, claimed_at=claimed_at) for row in started if claimed_at]
        return len(found), claims

    def _claim_apart(
        self,
        holder: str,
        names: Sequence[str],
        limit: int,
        lease: timedelta,
        on_skipped: OnSkipped,
        *,
        lost: int,
        kind: str = HAS_SLOT,
    ) -> tuple[int, list[Claim]]:
        """One by one: a row that would keep all the others from being claimed is set aside."""
        with self.transaction() as connection:
            keys = self.dialect.by_row.due(connection, names, limit, lost=lost, kind=kind)
        claims: list[Claim] = []
        for key in keys:
            try:
                claims += self._claim_one(holder, key, lease, on_skipped)
            except SQLAlchemyError:
                if not claims:
                    raise
                break  # what is claimed must be told
        return len(keys), claims

    def _claim_one(self, holder: str, key: Key, lease: timedelta, on_skipped: OnSkipped) -> list[Claim]:
        try:
            return self._claim(holder, [key.task_name], 1, lease, on_skipped, lost=1, instance=key.task_instance)[1]
        except Exception as error:
            if not is_about_a_row(error):
                raise
            if self._warnings.are_new(key, describe(error)):
                logger.exception("%s/%s cannot be claimed and is set aside: %s", *key, describe(error))
            with self.transaction() as connection:
                self.dialect.by_row.quarantine(connection, key, describe(error))
            return []

    def _start_late(
        self, connection: sa.Connection, late: Sequence[tuple[Row, bool]], now: datetime, skipped: list[tuple[Row, Gap]]
    ) -> dict[Key, Row | None]:
        weighed, after = self._weighed, self._gates.late
        asked = [(row, not entered and decide.is_weighed(row, now, weighed, after)) for row, entered in late]
        return self._late_claims.start(connection, asked, now, skipped)

    def _stopped(self, connection: sa.Connection, rows: Sequence[Row], now: datetime) -> Collection[Key]:
        """Count the starts of a limited task. Return the keys of one-time tasks that a gate has stopped."""
        refused = self._gates.admit(rows, now, connection)
        if stopped := [claim_of(row) for row in rows if row.key in refused]:
            self._late_claims.refuse_tasks(connection, stopped, refused)
        return refused

    def _weighed_of(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name in self._weighed] if self._weighed else []

    def _can_read(self, row: Row) -> bool:
        """Race: during a deploy a newer release plans rows with schedules that this one does not know."""
        try:
            return not row.is_plan or self.schedule_of(row) is not None
        except InvalidSchedule:
            return False
