"""Operations on many recurring instances of a job, chosen by a filter.

Each transaction takes up to 500 instances, in the order of their ids. Race: an operation on one of
them, or a synchronisation, waits for the job's latch; claims and settlements meet it by the rows'
locks. An instance that is created behind the place of the operation is not in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from slotwise.errors import ConfigurationError
from slotwise.model.records import RECURRING, Row
from slotwise.model.vocabulary import PauseScope, RowState
from slotwise.store.operations import job_operations, pauses, slot_operations
from slotwise.store.operations.pauses import Window
from slotwise.store.operations.transaction import CHUNK, Operation, Progress
from slotwise.store.schema.tables import Columns, Condition, Tables, is_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceFilter:
    """Recurring instances of a job: those that meet all that is given.

    ``id``: this one. ``scope``: those that a synchronisation keeps. ``tag``: those with this tag.
    ``prefix``: those whose ids begin so.
    """

    id: str | None = None
    scope: str | None = None
    tag: str | None = None
    prefix: str | None = None


def matching(tables: Tables, rows: Columns, where: InstanceFilter) -> list[Condition]:
    """Return the conditions that plan rows meet the filter; a scope is read by its index."""
    found = [is_plan(rows), rows.task_instance != RECURRING]
    found.append(rows.state.is_distinct_from(RowState.DELETED))
    if where.id is not None:
        found.append(rows.task_instance == where.id)
    if where.prefix is not None:
        found.append(rows.task_instance.startswith(where.prefix, autoescape=True))
    own = tables.instances.c
    if placed := _placed(own, where):
        mine = own.task_name == rows.task_name, *placed
        ids = sa.select(own.task_instance).where(*mine)
        found.append(rows.task_instance.in_(ids))
    return found


def _placed(placed: Columns, where: InstanceFilter) -> list[Condition]:
    """Return the conditions about scope and tag, if the filter has any."""
    found: list[Condition] = []
    if where.scope is not None:
        found.append(placed.scope == where.scope)
    if where.tag is not None:
        word = json.dumps(where.tag, ensure_ascii=False)
        found.append(placed.tags.contains(word, autoescape=True))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenInstances:
    """The instances of a job that an operation is about."""

    job: str
    where: InstanceFilter

    def sign(self, at: Operation, verb: str, so_far: Progress, **facts: object) -> int:
        """Write the operation to the audit, with its first chunk; return its number."""
        said = asdict(self.where) | facts
        return so_far.number or at.sign(verb, job=self.job, **said)

    def chunk(self, at: Operation, so_far: Progress) -> Sequence[str]:
        """Return the next ids. Raises UnknownTask without a plan row."""
        at.dialect.latch(at.connection, self.job, shared=False)
        if not so_far.after:
            at.expect_plan(self.job)
        tasks = at.tasks.c
        mine = [tasks.task_name == self.job, tasks.task_instance > so_far.after]
        mine += matching(at.store.tables, tasks, self.where)
        some = sa.select(tasks.task_instance).where(*mine)
        found = at.connection.scalars(some.order_by(tasks.task_instance).limit(CHUNK))
        return found.all()

    def rows(
        self, at: Operation, ids: Sequence[str], *conditions: Condition
    ) -> list[Row]:
        """Lock the plan rows of these instances and the rows beside them."""
        tasks = at.tasks.c
        family = tasks.task_instance.in_(ids) | tasks.plan_instance.in_(ids)
        return at.rows(tasks.task_name == self.job, family, *conditions)


#: Does something to instances with these ids; returns the number in the audit, None for none, and
#: the ids of those that it changed.
Act = Callable[[Sequence[str]], tuple[int | None, Collection[str]]]


def carry_on(
    at: Operation, chosen: ChosenInstances, so_far: Progress, act: Act
) -> Progress:
    """Act on the next chunk."""
    ids = chosen.chunk(at, so_far)
    number, changed = act(ids) if ids else (None, ())
    found = so_far.found + tuple(id for id in ids if id in changed)
    after = ids[-1] if len(ids) == CHUNK else None
    return so_far.beyond(
        found[len(so_far.found) :], after, number=number or so_far.number, found=found
    )


def _plans_among(rows: Sequence[Row]) -> set[str]:
    """Return the ids of the plan rows among these."""
    return {row.task_instance for row in rows if row.is_plan}


def pause(
    at: Operation, chosen: ChosenInstances, window: Window, so_far: Progress
) -> Progress:
    """Start nothing of these instances any more."""

    def act(ids: Sequence[str]) -> tuple[int | None, Collection[str]]:
        rows = chosen.rows(at, ids, at.tasks.c.state.is_(None))
        is_of = PauseScope.INSTANCE, chosen.job
        kept = {id for id in ids if pauses.keep(at, *is_of, id, window)}
        changed = kept | _plans_among(rows)
        if not changed and not rows:
            return None, ()
        until = window.end_text(at.now)
        number = chosen.sign(at, "pause", so_far, until=until)
        if rows:
            job_operations.update(at, rows, **job_operations.paused(at, number))
        return number, changed

    return carry_on(at, chosen, so_far, act)


def resume(
    at: Operation, chosen: ChosenInstances, so_far: Progress, *, replay: bool
) -> Progress:
    """Resume these instances."""

    def act(ids: Sequence[str]) -> tuple[int | None, Collection[str]]:
        rows = chosen.rows(at, ids, at.tasks.c.state == RowState.PAUSED)
        kept = pauses.kept(at, chosen.job)
        mine = [one for one in kept if one.id in ids]
        changed = _plans_among(rows) | {one.id for one in mine if one.id is not None}
        if not changed and not rows:
            return None, ()
        number = chosen.sign(at, "resume", so_far, replay=replay or None)
        job_operations.wake_rows(at, rows, kept, replay=replay)
        pauses.forget(at, *mine)
        return number, changed

    return carry_on(at, chosen, so_far, act)


def trigger(
    at: Operation, chosen: ChosenInstances, so_far: Progress, *, overlap: str | None
) -> Progress:
    """Run these instances once, beside their schedules; each has its entry in the audit."""

    def act(ids: Sequence[str]) -> tuple[None, Collection[str]]:
        for id in ids:
            slot_operations.trigger_now(at, chosen.job, overlap, id)
        return None, ids

    return carry_on(at, chosen, so_far, act)


def skip_next(at: Operation, chosen: ChosenInstances, so_far: Progress) -> Progress:
    """Skip the next slot of these instances; each has its entry in the audit. One without a next
    slot stays.
    """

    def act(ids: Sequence[str]) -> tuple[None, Collection[str]]:
        chosen.rows(at, ids)  # in the order of their keys
        changed = set()
        for id in ids:
            with suppress(ConfigurationError):
                slot_operations.skip_next(at, chosen.job, None, id)
                changed.add(id)
        return None, changed

    return carry_on(at, chosen, so_far, act)


def delete(at: Operation, chosen: ChosenInstances, so_far: Progress) -> Progress:
    """Delete these instances; the row of a run is deleted when that has ended."""

    def act(ids: Sequence[str]) -> tuple[int, Collection[str]]:
        job_operations.end(at, chosen.rows(at, ids))
        return chosen.sign(at, "delete", so_far), ids

    return carry_on(at, chosen, so_far, act)
