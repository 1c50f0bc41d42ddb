"""What a deploy would change, job by job; and which stored slots this release of slotwise has
moved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice

import sqlalchemy as sa

from slotwise.decide.slot_choice import undecided
from slotwise.jobs.definition import Definition
from slotwise.model.records import RECURRING, TICK, Row
from slotwise.schedules.base import slot_after
from slotwise.schedules.text import readable
from slotwise.store.connect.database import Database
from slotwise.store.operations.transaction import registered
from slotwise.store.planning.planner import Plan, Planner
from slotwise.store.planning.revision import Declared, Revision
from slotwise.store.schema.rows import row_of, utc
from slotwise.store.schema.tables import HAS_SLOT, is_plan
from slotwise.store.slots.store import Store

#: How many slots of a job are shown.
SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployChange:
    """What a deploy would make of one job.

    ``change``: added, changed (its schedule), policies (all else that it declares), kept, outdated
    (a newer deploy has planned it, so this one's schedule would be refused), or orphaned (it has a
    row, and no code). ``known_by``: a live worker that knows an orphan, of another application
    perhaps. ``at_once``: a slot is due by now. ``superseded``: how many slots would be skipped
    that an earlier schedule still owes.
    """

    job: str
    change: str
    before: str | None = None
    before_slots: Sequence[datetime] = ()
    after: str | None = None
    after_slots: Sequence[datetime] = ()
    at_once: bool = False
    superseded: int = 0
    known_by: str | None = None

    @property
    def is_change(self) -> bool:
        """Whether anything would be different after the deploy."""
        return self.change not in ("kept", "orphaned") or (
            self.change == "orphaned" and self.known_by is None
        )


def compare(
    database: Database, definitions: Mapping[str, Definition], revision: Revision
) -> list[DeployChange]:
    """What planning these jobs would change, by name; nothing is changed."""
    store = Store(database, definitions, keep=False)
    with store.transaction() as connection:
        rows = _own_rows(connection, store)
    jobs = [found for found in definitions.values() if found.is_planned]
    plans = Planner(store).plan(jobs, revision)
    # after planning: what starts at once is planned for the instant of its planning
    with store.transaction() as connection:
        now = store.dialect.now(connection)
        known = registered(connection, store.tables, now)
    changes = [
        _change(rows.get(plan.job), plan, definitions[plan.job], now) for plan in plans
    ]
    for name in rows.keys() - definitions.keys():
        orphan = DeployChange(job=name, change="orphaned", known_by=known.get(name))
        changes.append(_before(rows[name], orphan))
    return sorted(changes, key=lambda change: change.job)


def _before(row: sa.RowMapping, change: DeployChange) -> DeployChange:
    """Return the change with the schedule and the slots of the row as it is."""
    slots = _slots(row["schedule"], utc(row["slot"]))
    return replace(change, before=row["schedule"], before_slots=slots)


def _own_rows(connection: sa.Connection, store: Store) -> dict[str, sa.RowMapping]:
    """Return the jobs' own rows by name."""
    tasks = store.tables.tasks.c
    wanted = ("task_name", "schedule", "plan", "slot", "picked", "state")
    columns = [tasks[name] for name in wanted]
    own_rows = sa.select(*columns).where(
        tasks.task_instance == RECURRING, is_plan(tasks)
    )
    return {row["task_name"]: row for row in connection.execute(own_rows).mappings()}


def _change(
    row: sa.RowMapping | None, plan: Plan, definition: Definition, now: datetime
) -> DeployChange:
    after_slots = _slots(plan.schedule, plan.next_slot)
    change = DeployChange(
        job=plan.job,
        change=plan.change,
        after=plan.refused or plan.schedule,
        after_slots=after_slots,
        superseded=sum(gap.count for gap in plan.superseded),
    )
    is_due = bool(after_slots) and after_slots[0] <= now
    if row is None:
        return replace(change, at_once=is_due)
    declared = Declared.readable(row["plan"]).fingerprint
    is_same = plan.change != "kept" or declared in (None, definition.fingerprint)
    waits = not row["picked"] and row["state"] is None
    change = replace(change, at_once=is_due and waits)
    return _before(row, change if is_same else replace(change, change="policies"))


def _slots(text: str, first: datetime | None) -> tuple[datetime, ...]:
    if first is None:
        return ()
    schedule = readable(text)
    if schedule is None or schedule.from_end:
        return (first,)
    end = datetime.max.replace(tzinfo=first.tzinfo)
    return tuple(islice(schedule.running.slots(first - TICK, end), SHOWN))


# -- stored schedules that come to other slots now ------------------------------------------------

#: So many jobs' own rows are looked at, and so many of all: those that are due next, as the first
#: to surprise somebody.
LOOKED_AT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A job whose row says ``stored`` and whose schedule says ``computed``; ``count``: of so many
    rows of it.
    """

    job: str
    id: str
    stored: datetime | None
    computed: datetime | None
    count: int = 1


def moved(store: Store, names: Sequence[str]) -> list[Moved]:
    """Return the jobs, among the rows due next, whose stored slots differ from what this release
    computes.
    """
    rows = _due_next(store, names)
    found = [one for row in rows if (one := _compared(row)) is not None]
    counts = Counter(one.job for one in found)
    first = {one.job: one for one in reversed(found)}
    return [replace(first[job], count=counts[job]) for job in sorted(first)]


def _due_next(store: Store, names: Sequence[str]) -> list[Row]:
    """Return rows of these jobs that wait: their own rows first. Never more are read, however many
    one-time tasks wait beside them.
    """
    tasks = store.tables.tasks.c
    dialect = store.dialect
    mine = dialect.among(tasks.task_name, names), sa.text(HAS_SLOT)
    waiting = sa.select(*dialect.row_columns).where(
        *dialect.conditions.waiting(), *mine
    )
    order = tasks.execution_time, tasks.task_name, tasks.task_instance
    waiting = waiting.order_by(*order).limit(LOOKED_AT)
    own = waiting.where(tasks.task_instance == RECURRING)
    with store.transaction() as connection:
        found = [*connection.execute(own), *connection.execute(waiting)]
    rows = {row.key: row for row in map(row_of, found)}
    return list(rows.values())


def _compared(row: Row) -> Moved | None:
    schedule = readable(row.schedule)
    if (
        schedule is None
        or schedule.from_end
        or row.slot is None
        or not row.is_plan
        or row.attempt
    ):
        return None
    # After a slot that was handed back may come some that were left out with it: they are none
    # that have moved.
    left = undecided(schedule, row.slot, row.watermark)
    now = (schedule.next_after(row.slot - TICK), slot_after(left, row.slot))
    for stored, computed in zip((row.slot, row.next_slot), now, strict=True):
        if stored is not None and computed is not None and stored != computed:
            return Moved(
                job=row.task_name,
                id=row.task_instance,
                stored=stored,
                computed=computed,
            )
    return None
