"""Bring the recurring instances of a scope in line with a list of them.

A scope is a part of a task's instances that one list describes, such as the customers of a CRM. A
synchronisation compares first, and then writes chunks, each of which may be a transaction of its
own. If it is killed, the next one compares again and does the rest.

Races:

- against another synchronisation of the scope: the row of the scope has a token. The second takes
  it, and the first stops at its next chunk, which locks that row and compares the token;
- against claims, settlements and deploys: by the rows' locks, in the order of their keys;
- against ``schedule_recurring`` and ``unschedule_recurring`` of one id: by the lock of its row.
  What a chunk finds under the lock counts, not what was compared. Rows under a former name of the
  task are locked before those under its name, as ``renames`` does it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from slotwise.errors import ConfigurationError, InstanceExists, SyncSuperseded
from slotwise.model.records import Row, to_micros
from slotwise.model.values import Value
from slotwise.model.vocabulary import RowState
from slotwise.schedules import Schedule
from slotwise.store.dialects.port import NewRow, Transaction
from slotwise.store.operations import job_operations
from slotwise.store.operations.transaction import Operation
from slotwise.store.planning.calendars import Known
from slotwise.store.planning.instances import (
    NOBODY,
    Instance,
    Instances,
    has_schedule,
)
from slotwise.store.schema.rows import expect_all, row_of, tags_text
from slotwise.store.schema.tables import Condition, Expression, is_plan
from slotwise.store.slots.store import Store

#: Instances that are read at once.
PAGE = 5_000
#: Instances that are written at once: their rows stay locked for a few hundred milliseconds.
CHUNK = 1_000
#: Of a larger part of a scope, the removal must be forced.
MOST_REMOVED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport(Value):
    """What a synchronisation has done, or would do: the ids that it added, changed and removed,
    and how many it kept.

    ``needs_force``: more than a fifth of the scope is removed.
    """

    task: str
    scope: str
    added: Sequence[str]
    changed: Sequence[str]
    removed: Sequence[str]
    unchanged: int
    needs_force: bool


class Synchronisation:
    """The instances of one scope of a task as they shall be, by id, and what is left to do."""

    def __init__(
        self, store: Store, task: str, scope: str, wanted: Mapping[str, Instance]
    ) -> None:
        self._store = store
        self._tasks = store.tables.tasks
        self._rows = store.tables.instances
        self._scopes = store.tables.scopes
        self._instances = Instances(store)
        self._task = task
        _, *self._former = store.names_of(task)
        self._names = (*self._former, task)
        self._scope = scope
        self._wanted = wanted
        self._token = 0
        self._size = 0
        self._unchanged = 0
        self._added: list[str] = []
        self._changed: list[str] = []
        self._removed: list[str] = []

    @property
    def report(self) -> SyncReport:
        return SyncReport(
            task=self._task,
            scope=self._scope,
            added=tuple(self._added),
            changed=tuple(self._changed),
            removed=tuple(self._removed),
            unchanged=self._unchanged,
            needs_force=len(self._removed) * MOST_REMOVED > self._size,
        )

    def chunks(self) -> Iterator[tuple[bool, Sequence[str]]]:
        """Yield the ids to write, and then those to remove (True), as each ``write`` takes
        them.
        """
        for is_removal, ids in (
            (False, sorted([*self._added, *self._changed])),
            (True, sorted(self._removed)),
        ):
            for first in range(0, len(ids), CHUNK):
                yield is_removal, ids[first : first + CHUNK]

    # -- the scope --------------------------------------------------------------------------------

    def begin(self, connection: sa.Connection) -> None:
        """Take the scope: a synchronisation that is under way stops at its next chunk."""
        dialect = self._store.dialect
        now = dialect.now(connection)
        given = {
            "task_name": self._task,
            "scope": self._scope,
            "token": to_micros(now),
            "begun": now,
            "finished": None,
        }
        dialect.upsert(connection, self._scopes, given, self._taken)
        token = sa.select(self._scopes.c.token).where(*self._is_mine())
        self._token = connection.execute(token).scalar_one()

    def _taken(self, new: NewRow) -> dict[str, object]:
        """Return the columns of a scope that was taken before: its token grows in any case."""
        token = self._scopes.c.token
        is_later = token < new["token"]
        return {
            "token": sa.case((is_later, new["token"]), else_=token + 1),
            "begun": new["begun"],
            "finished": None,
        }

    def finish(self, connection: sa.Connection) -> None:
        """Note the end. Raise SyncSuperseded if another synchronisation has the scope."""
        self._expect_scope(connection)
        now = self._store.dialect.now(connection)
        done = self._scopes.update().where(*self._is_mine()).values(finished=now)
        connection.execute(done)

    def _expect_scope(self, connection: sa.Connection) -> None:
        held = (
            sa.select(self._scopes.c.token).where(*self._is_mine()).with_for_update()
        )
        if connection.execute(held).scalar() != self._token:
            raise SyncSuperseded(
                f"sync_schedules({self._task!r}, scope={self._scope!r}): another "
                "synchronisation of this scope has begun, and does the rest; nothing is left to "
                "do here"
            )

    def _is_mine(self) -> Sequence[Condition]:
        scopes = self._scopes.c
        return scopes.task_name == self._task, scopes.scope == self._scope

    # -- comparison -------------------------------------------------------------------------------

    def compare(self, connection: sa.Connection) -> None:
        """Find what is to be done. Raise InstanceExists for an id of another scope or of a
        one-time task, and InvalidSchedule for a missing calendar.
        """
        known: Known = {}
        absent = dict.fromkeys(self._wanted)
        former = self._left_behind(connection)
        self._size = len(former)
        self._removed.extend(former - self._wanted.keys())
        for row in self._present(connection):
            if row["task_instance"] in former:
                continue
            self._size += 1
            wanted = self._wanted.get(row["task_instance"])
            if wanted is None:
                self._removed.append(row["task_instance"])
                continue
            del absent[wanted.id]
            self._sort(connection, wanted, row, known)
        for row in self._others(connection, list(absent.keys() - former)):
            del absent[row["task_instance"]]
            self._sort(connection, self._wanted[row["task_instance"]], row, known)
        for id in absent:
            self._instances.bound(connection, self._wanted[id], known, lock=False)
            (self._changed if id in former else self._added).append(id)

    def _present(self, connection: sa.Connection) -> Iterator[sa.RowMapping]:
        """Yield the instances of the scope; of one whose row was deleted otherwise, the id."""
        rows = self._rows.c
        id = rows.task_instance
        query = sa.select(*self._columns(id)).select_from(
            self._rows.outerjoin(self._tasks, self._is_same())
        )
        query = query.where(rows.task_name == self._task, rows.scope == self._scope)
        yield from self._pages(connection, query, id)

    def _left_behind(self, connection: sa.Connection) -> set[str]:
        """Return the ids that the scope has under former names of the task."""
        rows = self._rows.c
        mine = rows.task_name.in_(self._former), rows.scope == self._scope
        return set(connection.scalars(sa.select(rows.task_instance).where(*mine)))

    def _pages(
        self,
        connection: sa.Connection,
        query: sa.Select[tuple[object, ...]],
        id: sa.ColumnElement[str],
    ) -> Iterator[sa.RowMapping]:
        """Yield the rows of a query by id, page by page."""
        query = query.order_by(id).limit(PAGE)
        after: list[Condition] = []
        while True:
            found = connection.execute(query.where(*after)).mappings().all()
            yield from found
            if len(found) < PAGE:
                return
            after = [id > found[-1]["task_instance"]]

    def _others(
        self, connection: sa.Connection, ids: Sequence[str]
    ) -> Iterator[sa.RowMapping]:
        """Yield the rows of these ids, none of which is in the scope."""
        tasks = self._tasks.c
        query = sa.select(*self._columns(tasks.task_instance)).select_from(
            self._tasks.outerjoin(self._rows, self._is_same())
        )
        for first in range(0, len(ids), PAGE):
            page = ids[first : first + PAGE]
            named = self._store.dialect.among(tasks.task_instance, page)
            mine = query.where(tasks.task_name == self._task, named)
            yield from connection.execute(mine).mappings()

    def _columns(self, id: sa.ColumnElement[str]) -> Sequence[Expression]:
        tasks = self._tasks.c
        return (
            id,
            is_plan(tasks).label("is_plan"),
            tasks.state,
            tasks.schedule,
            tasks.task_data,
            tasks.priority,
            self._rows.c.scope,
            self._rows.c.tags,
        )

    def _is_same(self) -> Condition:
        tasks = self._tasks.c
        rows = self._rows.c
        return sa.and_(
            tasks.task_name == rows.task_name,
            tasks.task_instance == rows.task_instance,
        )

    def _sort(
        self,
        connection: sa.Connection,
        wanted: Instance,
        row: sa.RowMapping,
        known: Known,
    ) -> None:
        """Decide about an instance whose row, or whose place in a scope, is there."""
        self._refuse_another(wanted.id, row["scope"])
        schedule = self._instances.bound(connection, wanted, known, lock=False)
        if row["is_plan"] is None or row["state"] == RowState.DELETED:
            self._added.append(wanted.id)
            return
        if not row["is_plan"]:
            raise InstanceExists(
                f"task {self._task!r} has a one-time instance with id {wanted.id!r}; choose "
                "another id, or cancel that"
            )
        if self._is_as_wanted(wanted, row, schedule):
            self._unchanged += 1
        else:
            self._changed.append(wanted.id)

    def _is_as_wanted(
        self, wanted: Instance, row: sa.RowMapping, schedule: Schedule
    ) -> bool:
        told = wanted.data, wanted.priority, self._scope, tags_text(wanted.tags)
        found = row["task_data"], row["priority"], row["scope"], row["tags"]
        return told == found and has_schedule(row["schedule"], schedule)

    def _refuse_another(self, id: str, scope: str | None) -> None:
        if scope not in (None, self._scope):
            raise InstanceExists(
                f"sync_schedules({self._task!r}, scope={self._scope!r}): the id {id!r} is in "
                f"scope {scope!r}; choose another id, or remove it from that scope"
            )

    def refuse_large_removal(self) -> None:
        """Raise ConfigurationError if more than a fifth of the scope would be removed."""
        if self.report.needs_force:
            raise ConfigurationError(
                f"sync_schedules({self._task!r}, scope={self._scope!r}): "
                f"{len(self._removed):,} of {self._size:,} instances would be removed, which is "
                "more than a fifth; check the items (dry_run=True lists them), or pass force=True"
            )

    # -- writes -----------------------------------------------------------------------------------

    def write(
        self, connection: sa.Connection, ids: Sequence[str], *, is_removal: bool
    ) -> None:
        """Write one of the ``chunks``. Raise SyncSuperseded if another synchronisation has the
        scope; then nothing is written.
        """
        self._expect_scope(connection)
        for name in sorted(self._names):
            self._store.dialect.latch(connection, name, shared=True)
        if is_removal:
            self._remove(connection, ids)
        else:
            self._put(connection, [self._wanted[id] for id in ids])

    def _put(self, connection: sa.Connection, wanted: Sequence[Instance]) -> None:
        known: Known = {}
        ids = {one.id for one in wanted}
        former = self._under_former_names(connection, ids)
        for one in wanted:
            if one.id in former:
                self._instances.put(connection, one)  # it follows, alone
        rows = self._lock(connection, ids - former)
        # Race: only under the rows' locks is no slot claimed that is younger than the activation.
        at = self._store.at(connection)
        new = [one for one in wanted if one.id not in rows and one.id not in former]
        for one in self._instances.insert_all(at, new, known):
            self._instances.put(connection, one)
        for one in wanted:
            if (row := rows.get(one.id)) is not None:
                schedule = self._instances.bound(connection, one, known)
                self._instances.change(at, row, one, schedule)
        self._place(at, wanted)

    def _under_former_names(
        self, connection: sa.Connection, ids: Collection[str]
    ) -> set[str]:
        """Return those of these ids that have rows under former names of the task."""
        if not self._former:
            return set()
        tasks = self._tasks.c
        mine = tasks.task_name.in_(self._former)
        some = self._store.dialect.among(tasks.task_instance, ids)
        found = connection.scalars(sa.select(tasks.task_instance).where(mine, some))
        return set(found)

    def _lock(self, connection: sa.Connection, ids: Collection[str]) -> dict[str, Row]:
        dialect = self._store.dialect
        tasks = self._tasks.c
        mine = tasks.task_name == self._task, dialect.among(tasks.task_instance, ids)
        query = sa.select(*dialect.row_columns).where(*mine)
        found = connection.execute(
            query.order_by(*dialect.key_order).with_for_update()
        )
        rows = [row_of(values) for values in found]
        return {row.task_instance: row for row in rows}

    def _place(self, at: Transaction, wanted: Sequence[Instance]) -> None:
        """Write scope and tags of instances whose rows this transaction has locked or inserted:
        so nobody else places them.
        """
        ids = [one.id for one in wanted]
        if self._former:
            operation = Operation.within(at.connection, self._store, NOBODY)
            job_operations.displace(operation, self._former, ids)
        placed = self._placed(at.connection, ids)
        for id, scope in placed.items():
            self._refuse_another(id, scope)
        rows = [self._membership(one, at.now) for one in wanted]
        new = [row for row in rows if row["task_instance"] not in placed]
        if new:
            added = at.dialect.insert_missing(at.connection, self._rows, new)
            expect_all(len(added), len(new), f"instances of {self._task}")
        if again := [row for row in rows if row["task_instance"] in placed]:
            at.dialect.replace_all(at.connection, self._rows, again)

    def _membership(self, wanted: Instance, now: datetime) -> dict[str, object]:
        """Return the row of an instance in the scope."""
        return {
            "task_name": self._task,
            "task_instance": wanted.id,
            "scope": self._scope,
            "tags": tags_text(wanted.tags),
            "updated": now,
        }

    def _placed(self, connection: sa.Connection, ids: Sequence[str]) -> dict[str, str]:
        """Return the scopes of those of these instances that have one."""
        rows = self._rows.c
        mine = (
            rows.task_name.in_(self._names),
            self._store.dialect.among(rows.task_instance, ids),
        )
        found = connection.execute(
            sa.select(rows.task_instance, rows.scope).where(*mine)
        )
        return {row.task_instance: row.scope for row in found}

    def _remove(self, connection: sa.Connection, ids: Sequence[str]) -> None:
        operation = Operation.within(connection, self._store, NOBODY)
        tasks = self._tasks.c
        among = self._store.dialect.among
        family = among(tasks.task_instance, ids) | among(tasks.plan_instance, ids)
        found = [
            operation.rows(tasks.task_name == name, family) for name in self._names
        ]
        # Race: one was unscheduled meanwhile, and scheduled again by itself. It is in no scope.
        placed = self._placed(connection, ids)
        mine = {id for id, scope in placed.items() if scope == self._scope}
        for rows in found:
            chosen = [
                row for row in rows if (row.plan_instance or row.task_instance) in mine
            ]
            job_operations.end(operation, chosen)
        job_operations.displace(operation, self._names, mine)
