"""Business calendars in the database: read, changed, and followed by the rows that go by them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from difflib import get_close_matches
from functools import partial
from typing import TypeAlias

import sqlalchemy as sa

from slotwise.errors import InvalidSchedule
from slotwise.model.records import Key, Row
from slotwise.schedules import Calendar, Schedule, parse_schedule
from slotwise.schedules.calendars import calendar_of
from slotwise.store.connect.notifications import LOOK
from slotwise.store.dialects.port import Transaction
from slotwise.store.operations.transaction import Author, Operation
from slotwise.store.planning.plan_rows import replanned, write
from slotwise.store.schema.rows import row_of, utc
from slotwise.store.schema.tables import Tables, is_detached
from slotwise.store.slots.store import Store

#: So many rows follow a calendar in one transaction: locks are held for moments.
PAGE = 200

Edit = Callable[[Calendar | None], Calendar]
#: Calendars that a transaction has read, by their names.
Known: TypeAlias = dict[frozenset[str], dict[str, Calendar]]

_BOUND = re.compile(r"([A-Za-z0-9_.\-]+)@[0-9]+\[")


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarInfo:
    """A calendar as the database has it, and the jobs whose rows go by it. ``unreadable`` is why
    there is no ``calendar``: another program has written the row.
    """

    name: str
    calendar: Calendar | None
    unreadable: str | None = None
    updated: datetime
    jobs: Sequence[str]

    def as_json(self) -> dict[str, object]:
        """What ``Calendar.as_json`` gives; of an unreadable one its name and the reason."""
        if self.calendar is None:
            return {"calendar": self.name, "unreadable": self.unreadable}
        return self.calendar.as_json()


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarFollower:
    """A row of a changed calendar: its next slot, or why it keeps its days; and how many slots
    were superseded.
    """

    job: str
    instance: str
    next_slot: datetime | None = None
    refused: str | None = None
    superseded: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarChange:
    """A calendar before and after a change; ``before`` is None if it is new."""

    before: Calendar | None
    after: Calendar
    followed: Sequence[CalendarFollower] = ()

    @property
    def _known(self) -> Calendar:
        """The calendar before the change; without any days if it is new."""
        return self.before or replace(self.after, days=frozenset(), worked=frozenset())

    @property
    def added(self) -> list[date]:
        """The listed days that are no longer worked on, sorted."""
        return sorted(self.after.days - self._known.days)

    @property
    def removed(self) -> list[date]:
        """The days that are no longer listed, sorted."""
        return sorted(self._known.days - self.after.days)

    @property
    def worked_added(self) -> list[date]:
        """The days of a weekend that are worked on now, sorted."""
        return sorted(self.after.worked - self._known.worked)

    @property
    def worked_removed(self) -> list[date]:
        """The days of a weekend that are no longer worked on, sorted."""
        return sorted(self._known.worked - self.after.worked)


def calendars_of(
    connection: sa.Connection, tables: Tables, schedule: Schedule, *, lock: bool = True
) -> dict[str, Calendar]:
    """Return the calendars of a schedule as they are now. Raise InvalidSchedule for one that
    exists nowhere.

    Race: they stay locked, so a later change of a calendar finds the rows that this transaction
    plans by it. One that only reads needs no ``lock``.
    """
    wanted = schedule.calendars
    if not wanted:
        return {}
    table = tables.calendars
    named = sa.select(table).where(table.c.name.in_(list(wanted)))
    named = named.order_by(table.c.name)
    if lock:
        named = named.with_for_update(read=True)
    rows = connection.execute(named).mappings()
    found = {row["name"]: calendar_in(row) for row in rows}
    for name, own in wanted.items():
        if name not in found and own is None:
            raise missing(name, connection.scalars(sa.select(table.c.name)))
    return found


def calendar_in(row: sa.RowMapping) -> Calendar:
    """Read a row. Raise InvalidSchedule, with the cure, if another program wrote it wrongly."""
    name = row["name"]
    try:
        return calendar_of(name, row["revision"], row["weekend"], row["days"])
    except InvalidSchedule as error:
        raise InvalidSchedule(
            f"calendar {name} cannot be read: {error}; remove it with: "
            f"slotwise calendar remove {name}, and import it again"
        ) from None


def _info(row: sa.RowMapping, jobs: Sequence[str]) -> CalendarInfo:
    calendar = unreadable = None
    try:
        calendar = calendar_in(row)
    except InvalidSchedule as error:
        unreadable = str(error)
    return CalendarInfo(
        name=row["name"],
        calendar=calendar,
        unreadable=unreadable,
        updated=utc(row["updated"]),
        jobs=jobs,
    )


def _refuse_used(calendar: CalendarInfo) -> None:
    """Raise InvalidSchedule for a readable calendar that rows go by."""
    jobs = calendar.jobs
    if jobs and calendar.calendar is not None:
        more = ", …" if len(jobs) > 5 else ""
        raise InvalidSchedule(
            f"calendar {calendar.name} is used by {', '.join(jobs[:5])}{more}; "
            "change their schedules first"
        )


def missing(name: str, known: Iterable[str]) -> InvalidSchedule:
    near = get_close_matches(name, list(known), n=1)
    make = (
        f"make it with: slotwise calendar import {name}, or: slotwise calendar add "
        f"{name} DAY --create"
    )
    hint = f"did you mean {near[0]}?" if near else make
    return InvalidSchedule(f"there is no calendar {name} in the database; {hint}")


class Calendars:
    """Reads and changes the calendars of one set of tables. ``author`` is named in the audit."""

    def __init__(self, store: Store, author: str) -> None:
        self._store = store
        self._author = Author(author)
        self._table = store.tables.calendars
        self._tasks = store.tables.tasks

    def all(self) -> list[CalendarInfo]:
        by_name = sa.select(self._table).order_by(self._table.c.name)
        with self._store.transaction() as connection:
            rows = connection.execute(by_name).mappings().all()
            users = self._users(connection)
        return [_info(row, users.get(row["name"], ())) for row in rows]

    def find(self, name: str) -> CalendarInfo:
        """One calendar. Raises InvalidSchedule with near matches if there is none of this name."""
        lines = self.all()
        for line in lines:
            if line.name == name:
                return line
        raise missing(name, [line.name for line in lines])

    def change(
        self,
        name: str,
        edit: Edit,
        operation: str,
        *,
        source: str | None = None,
        names: Mapping[date, str] | None = None,
        note: str | None = None,
        create: bool = True,
        dry_run: bool = False,
    ) -> CalendarChange:
        """Replace a calendar by the result of ``edit``, and re-plan its rows, page by page;
        ``dry_run``: only say how. The audit has ``operation``, ``source``, ``note`` and the names
        of the days that are new.

        Repeating an interrupted change completes it. Raises what ``edit`` raises, and
        InvalidSchedule if it must exist.
        """
        author = Author(self._author.name, note)
        audit = partial(
            self._audit, author=author, operation=operation, source=source, names=names
        )
        before, after = self._write(name, edit, audit, create=create, dry_run=dry_run)
        followed = self._follow(after, dry_run=dry_run)
        if followed and not dry_run:
            self._store.database.wake_ups.tell(
                LOOK
            )  # workers sleep until what was due next before
        return CalendarChange(before=before, after=after, followed=followed)

    def remove(
        self,
        name: str,
        operation: str,
        *,
        note: str | None = None,
        dry_run: bool = False,
    ) -> CalendarInfo:
        """Take a calendar away. Raises InvalidSchedule if it is not there, or if rows go by it,
        unless it cannot be read.
        """
        with self._store.transaction() as connection:
            # Race: whoever plans a row by it locks it first, so under this lock no further user
            # comes.
            row = self._lock(connection, name)
            if row is None:
                raise self._missing(connection, name)
            gone = _info(row, self._users(connection).get(name, []))
            _refuse_used(gone)
            if not dry_run:
                connection.execute(
                    self._table.delete().where(self._table.c.name == name)
                )
                self._audit(
                    connection,
                    str(gone.calendar or name),
                    author=Author(self._author.name, note),
                    operation=operation,
                )
        return gone

    def _write(
        self,
        name: str,
        edit: Edit,
        audit: Callable[..., None],
        *,
        create: bool,
        dry_run: bool,
    ) -> tuple[Calendar | None, Calendar]:
        with self._store.transaction() as connection:
            row = self._lock(connection, name)
            before = None if row is None else calendar_in(row)
            if before is None and not create:
                raise self._missing(connection, name)
            known = before.revision if before else 0
            after = replace(edit(before), name=name, revision=known)
            if before == after:
                return before, after
            after = replace(after, revision=known + 1)
            if not dry_run:
                self._replace(connection, after)
                new = after.days - (before.days if before else frozenset())
                audit(connection, str(after), new=new)
        return before, after

    def _replace(self, connection: sa.Connection, calendar: Calendar) -> None:
        """Race: somebody else may have made it since the look; the later one wins, as with any two
        changes.
        """
        values = {
            "revision": calendar.revision,
            "weekend": calendar.weekend_text,
            "days": calendar.days_text,
            "updated": self._store.dialect.now(connection),
        }
        again = {**values, "revision": self._table.c.revision + 1}
        new = {"name": calendar.name, **values}
        self._store.dialect.upsert(connection, self._table, new, lambda new: again)

    def _missing(self, connection: sa.Connection, name: str) -> InvalidSchedule:
        return missing(name, connection.scalars(sa.select(self._table.c.name)))

    def _lock(self, connection: sa.Connection, name: str) -> sa.RowMapping | None:
        named = sa.select(self._table).where(self._table.c.name == name)
        return connection.execute(named.with_for_update()).mappings().first()

    def _audit(
        self,
        connection: sa.Connection,
        calendar: str,
        *,
        author: Author,
        operation: str,
        source: str | None = None,
        names: Mapping[date, str] | None = None,
        new: Collection[date] = (),
    ) -> None:
        named = {str(day): name for day, name in (names or {}).items() if day in new}
        signed = Operation.within(connection, self._store, author)
        signed.sign(operation, calendar=calendar, source=source, names=named or None)

    def _users(self, connection: sa.Connection) -> dict[str, list[str]]:
        statement = sa.select(self._tasks.c.task_name, self._tasks.c.schedule).where(
            self._tasks.c.schedule.like("%@%"), ~is_detached(self._tasks.c)
        )
        found: dict[str, set[str]] = {}
        for job, text in connection.execute(statement):
            for calendar in _BOUND.findall(text):
                found.setdefault(calendar, set()).add(job)
        return {calendar: sorted(jobs) for calendar, jobs in found.items()}

    def _follow(self, after: Calendar, *, dry_run: bool) -> list[CalendarFollower]:
        followed: list[CalendarFollower] = []
        cursor = Key("", "")
        while True:
            with self._store.transaction() as connection:
                rows = self._rows(connection, after.name, cursor, lock=not dry_run)
                # Race: only under the rows' locks is no slot claimed that is younger than the
                # activation.
                at = self._store.at(connection)
                known: Known = {}
                for row in rows:
                    found = self._follow_one(at, row, after, known, dry_run=dry_run)
                    followed += [] if found is None else [found]
            if len(rows) < PAGE:
                return followed
            cursor = rows[-1].key

    def _follow_one(
        self,
        at: Transaction,
        row: Row,
        after: Calendar,
        known: Known,
        *,
        dry_run: bool,
    ) -> CalendarFollower | None:
        """Re-plan a row; None if its days are the same."""
        follower = CalendarFollower(job=row.task_name, instance=row.task_instance)
        try:
            bound = _bound(at, row, known, {after.name: after} if dry_run else {})
            if bound is None:
                return None
            changes = replanned(row, bound, at.now)
        except InvalidSchedule as error:
            return replace(follower, refused=str(error))
        if not dry_run:
            write(at, row, changes)
        return replace(
            follower,
            next_slot=changes.row.get("slot", row.slot),
            superseded=sum(gap.count for gap in changes.gaps),
        )

    def _rows(
        self, connection: sa.Connection, name: str, cursor: Key, *, lock: bool
    ) -> list[Row]:
        """The next plan rows whose text names the calendar, locked in the order of their keys."""
        tasks = self._tasks
        task, instance = self._store.dialect.key_order
        after = (task > cursor.task_name) | (
            (task == cursor.task_name) & (instance > cursor.task_instance)
        )
        statement = (
            sa.select(*self._store.dialect.row_columns)
            .where(
                tasks.c.schedule.contains(f"{name}@", autoescape=True),
                ~is_detached(tasks.c),
                after,
            )
            .order_by(task, instance)
            .limit(PAGE)
        )
        return [
            row_of(values)
            for values in connection.execute(
                statement.with_for_update() if lock else statement
            )
        ]


def _bound(
    at: Transaction, row: Row, known: Known, changed: Mapping[str, Calendar]
) -> Schedule | None:
    """Return the schedule of a row by its calendars now, and by those that would be changed; None
    if its days are the same. Raises InvalidSchedule.
    """
    planned = parse_schedule(row.schedule or "-").last
    names = frozenset(planned.calendars)
    if names not in known:
        known[names] = calendars_of(at.connection, at.dialect.tables, planned)
    bound = planned.bind(row.task_name, {**known[names], **changed})
    return None if bound == planned else bound
