"""PostgreSQL (15 or newer): the hot statements, in batches, each as a method of the dialect."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache, partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import insert

from slotwise.model.clock import Clock
from slotwise.model.records import (
    Claim,
    Fence,
    Gap,
    Key,
    LedgerEntry,
    LedgerKey,
    Row,
    Transition,
)
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.dialects.conditions import of_key
from slotwise.store.dialects.gaps import close_open_slots, enter_gaps
from slotwise.store.dialects.port import (
    ClaimRequest,
    Parted,
    Range,
    Transaction,
)
from slotwise.store.dialects.postgresql import statements
from slotwise.store.dialects.postgresql.arrays import (
    fences,
    held_fences,
    integers,
    keys_of,
    ledger_fences,
    marked,
    spread,
    texts,
    varying,
)
from slotwise.store.dialects.postgresql.claimed_rows import by_rank, slot_of, task_of
from slotwise.store.dialects.postgresql.guards import GUARDS
from slotwise.store.dialects.postgresql.queue import PostgreSQLTasks
from slotwise.store.dialects.postgresql.server import PostgreSQLServer
from slotwise.store.dialects.row_values import Values
from slotwise.store.dialects.task_statements import TaskStatements
from slotwise.store.dialects.upserts import Upserting
from slotwise.store.schema.column_types import Instant
from slotwise.store.schema.rows import (
    ADVANCED,
    CHANGED_COLUMNS,
    RECORDED_COLUMNS,
    Change,
    Held,
    decided,
    expect,
    row_of,
    stored,
    utc,
)
from slotwise.store.schema.tables import Tables

#: From so many rows on, arrays take less time than parameters.
MANY = 20
_PARAMETER = re.compile(r"%\((\w+)\)s")
#: How rows of the ledger are locked, by ``skip_locked``; OFFSET keeps the look a look-up by key.
_ENTRY_LOCKS = {None: "OFFSET 0", False: "FOR UPDATE", True: "FOR UPDATE SKIP LOCKED"}


class PostgreSQL(Upserting, PostgreSQLServer):
    """The reference: whole batches, one statement each. Every verb of claims, held rows and the
    ledger is its own.
    """

    has_fast_finish = True
    is_one_statement = True
    insert = staticmethod(insert)

    def __init__(self, tables: Tables, clock: Clock) -> None:
        super().__init__(tables, clock)
        prepare = postgresql.dialect().identifier_preparer  # type: ignore[no-untyped-call]
        self._is_manual = clock.override() is not None
        now = "pg_catalog.statement_timestamp()"
        self._names = {
            "now": "CAST(%(now)s AS timestamptz)" if self._is_manual else now
        }
        for table in ("tasks", "slots", "gaps", "meta", "pauses", "checkpoints"):
            self._names[table] = prepare.format_table(getattr(tables, table))
        for name, part in statements.PARTS.items():
            self._names[name] = part.format(**self._names)
        #: Return a statement as it is sent, with quoted names and the expression for "now".
        self.sql = lru_cache(maxsize=256)(partial(str.format, **self._names))
        #: The same for a caller's connection.
        self._joining = lru_cache(lambda template: sa.text(self.sql(template)))

    def guard(
        self, connection: Joinable, claim: Claim, saved: Values | None = None
    ) -> bool:
        key = claim.row.ledger_key
        values = {
            **(key or claim.key)._asdict(),
            **(saved or {}),
            "token": claim.token,
            "holder": claim.holder,
            "lease": f"{max(int(claim.lease.total_seconds() * 1000), 1)}ms",
            "now": self.clock.override(),
        }
        statement = self._joining(GUARDS[key is None, saved is None])
        return connection.execute(statement, values).fetchone() is not None

    def _run(
        self,
        connection: sa.Connection,
        template: str,
        parameters: Mapping[str, object],
        **parts: str,
    ) -> sa.CursorResult[Any]:
        if self._is_manual:
            parameters = {**parameters, "now": self.clock.override()}
        statement = self.sql(template, **parts)
        if connection.dialect.driver == "asyncpg":  # a caller's
            return connection.exec_driver_sql(*_numbered(statement, parameters))
        return connection.exec_driver_sql(statement, dict(parameters))

    def _fetch(
        self,
        connection: sa.Connection,
        template: str,
        parameters: Mapping[str, object],
        **parts: str,
    ) -> Sequence[Sequence[Any]]:
        """The rows as the driver has them: SQLAlchemy's would cost a claim as much as reading
        them.
        """
        cursor = self._run(connection, template, parameters, **parts).cursor
        assert cursor is not None
        return cursor.fetchall()

    def insert_missing(
        self,
        connection: sa.Connection,
        table: sa.Table,
        rows: Sequence[Mapping[str, object]],
    ) -> Sequence[object]:
        """Many rows as arrays: the driver would read a text with a parameter for each value."""
        if len(rows) < MANY:
            return super().insert_missing(connection, table, rows)
        insert = self.insert(table).from_select(
            list(rows[0]), self.arrays_of(table, rows), include_defaults=False
        )
        first = table.primary_key.columns[0]
        statement = insert.on_conflict_do_nothing().returning(first)
        return connection.scalars(statement).all()

    def ago(
        self, connection: Joinable, span: timedelta = timedelta(0)
    ) -> sa.ColumnElement[datetime]:
        if (override := self.clock.override()) is not None:
            return sa.literal(override - span, Instant)
        now = sa.func.pg_catalog.statement_timestamp(type_=Instant)
        return now - sa.literal(span, sa.Interval) if span else now

    def transaction_id(self, connection: sa.Connection) -> str | None:
        # Without a write there is none: a replica would refuse one, and nothing can be in doubt.
        found: str | None = connection.exec_driver_sql(
            "SELECT pg_catalog.pg_current_xact_id_if_assigned()::text"
        ).scalar_one()
        return found

    def committed(self, connection: sa.Connection, transaction_id: str) -> bool | None:
        status = connection.exec_driver_sql(
            "SELECT pg_catalog.pg_xact_status(%(id)s::xid8)", {"id": transaction_id}
        ).scalar_one()
        return {"committed": True, "aborted": False}.get(status)

    def claim(
        self, connection: sa.Connection, request: ClaimRequest
    ) -> list[tuple[Row, datetime, bool]]:
        parameters = {
            **request._asdict(),
            "names": texts(request.names),
            "strict": texts(request.strict),
            "weighed": texts(request.weighed),
            "lost": min(request.lost, request.limit),
        }
        if request.instance is None:
            kind = (
                statements.HAS_SLOT
                if request.since is None
                else statements.HAS_SLOT + statements.SINCE
            )
            parts = {
                "who": statements.OF_NAMES + self._names["all_paused"],
                "kind": kind,
            }
        else:
            parts = {"who": statements.ONE, "kind": "", "unpaused": ""}
        fresh = self.sql(
            statements.OLDEST if request.is_level else statements.MOST_URGENT, **parts
        )
        found = self._fetch(
            connection, statements.CLAIM, parameters, **parts, fresh=fresh
        )
        if not found:
            return []
        now = found[0][0]
        return [
            (slot_of(values[2:], request, now), now, values[1]) for values in found
        ]

    def due_names(
        self, connection: sa.Connection, limit: int, since: datetime | None
    ) -> Sequence[Sequence[Any]]:
        parameters = {"limit": limit, "since": since}
        behind = "" if since is None else statements.SINCE
        return self._fetch(connection, statements.DUE_NAMES, parameters, since=behind)

    def claim_tasks(
        self, connection: sa.Connection, request: ClaimRequest
    ) -> tuple[list[Row], bool]:
        names = request.names
        parameters = {
            "holder": request.holder,
            "tasks": texts(names),
            "limit": request.limit,
            "lease": request.lease,
        }
        parameters |= marked(
            map(Range, names) if request.ranges is None else request.ranges
        )
        most = "%(limit)s"
        if request.most:
            most = statements.MOST
            parameters["bounded"] = texts(request.most)
            parameters["most"] = integers(request.most.values())
        found = self._fetch(connection, statements.CLAIM_TASKS, parameters, most=most)
        return [
            task_of(values, request.holder) for values in sorted(found, key=by_rank)
        ], not found or found[0][-1]

    def first_slots(
        self,
        connection: sa.Connection,
        limit: int,
        *,
        lost: int,
        since: datetime | None,
    ) -> list[tuple[str, timedelta]]:
        parameters = {"limit": limit, "lost": limit * min(lost, 1), "since": since}
        behind = "" if since is None else statements.SINCE
        return [
            (name, due)
            for name, due in self._fetch(
                connection, statements.FIRST_SLOTS, parameters, since=behind
            )
        ]

    def next_due(
        self,
        connection: sa.Connection,
        names: Sequence[str],
        tasks: Sequence[str],
        *,
        lost: int = 1,
        since: datetime | None = None,
        no_slots: bool = False,
    ) -> tuple[timedelta | None, datetime | None]:
        parameters = {
            "names": texts(names),
            "lost": min(lost, 1),
            "since": since,
            **marked(map(Range, tasks)),
        }
        parts = {"since": "", "begin": self._names["begin_of_own"]}
        if since is not None:
            parts = {"since": statements.SINCE, "begin": "NULL"}
        elif no_slots:
            parts = {"since": "\n      AND false", "begin": "NULL"}
        ((due, begin),) = self._fetch(
            connection, statements.NEXT_DUE, parameters, **parts
        )
        return due, begin

    def newest_decided(
        self, connection: sa.Connection, plans: Sequence[Key], strict: Collection[str]
    ) -> list[datetime | None]:
        parameters = {**keys_of(plans), "strict": list(strict)}
        return [
            utc(newest)
            for (newest,) in self._fetch(connection, statements.NEWEST, parameters)
        ]

    def enter(
        self,
        connection: sa.Connection,
        rows: Sequence[Row],
        now: datetime,
        strict: Collection[str],
    ) -> set[Key]:
        if not rows:
            return set()
        parameters, parts = spread([decided(row) for row in rows], CHANGED_COLUMNS)
        parameters |= held_fences(rows)
        parameters |= {"strict": texts(strict), "claimed_at": now}
        found = self._fetch(connection, statements.ENTER, parameters, **parts)
        expect(found[0][0], len(rows), rows[0])
        entered = {LedgerKey(*key) for _, *key in found if key[0] is not None}
        return {row.key for row in rows if row.ledger_key in entered}

    def gaps(
        self, connection: sa.Connection, gaps: Sequence[tuple[Row, Gap]], now: datetime
    ) -> None:
        if not gaps:
            return
        parameters = {
            **keys_of(row.plan_key for row, _ in gaps),
            "versions": [row.version for row, _ in gaps],
            "holders": [row.picked_by for row, _ in gaps],
            "firsts": [gap.first for _, gap in gaps],
            "lasts": [gap.last for _, gap in gaps],
            "counts": [gap.count for _, gap in gaps],
            "reasons": [gap.reason for _, gap in gaps],
            "afters": [gap.after for _, gap in gaps],
            "at": now,
        }
        for (turn,) in self._fetch(connection, statements.GAPS, parameters):
            row, gap = gaps[turn - 1]
            at = Transaction(connection, self, now)
            parts = close_open_slots(at, row, gap)
            if parts != [gap]:
                whole = self.tables.gaps
                mine = (
                    *of_key(whole.c, row.plan_key),
                    whole.c.first_slot == gap.first,
                    whole.c.last_slot == gap.last,
                )
                connection.execute(whole.delete().where(*mine))
                enter_gaps(at, [(row, part) for part in parts])

    def finish(
        self, connection: sa.Connection, claims: Sequence[Claim]
    ) -> tuple[str | None, int]:
        # Twice, the second time by name: texts alone are compared faster than keys.
        ordered = sorted(claims, key=lambda claim: claim.row.task_instance)
        ordered.sort(key=lambda claim: claim.row.task_name)
        parameters = {
            **fences(claim.row for claim in ordered),
            "holder": claims[0].holder,
        }
        transaction_id, count = self._fetch(connection, statements.FINISH, parameters)[
            0
        ]
        return transaction_id, count

    def advance(
        self, connection: sa.Connection, endings: Sequence[tuple[Claim, Transition]]
    ) -> tuple[str | None, set[Fence]]:
        rows = [following.row for _, following in endings if following.row]
        columns: dict[str, list[object]] = {
            "slot": [claim.row.slot for claim, _ in endings],
            "schedule": [claim.row.schedule for claim, _ in endings],
            "origin": [claim.row.origin for claim, _ in endings],
            "collapsed": [claim.row.collapsed for claim, _ in endings],
            "due": [row["execution_time"] for row in rows],
            "next_slot": [row["slot"] for row in rows],
            "after_next": [row["next_slot"] for row in rows],
        }
        different, parts = varying(columns, ADVANCED)
        parameters = {
            **fences(claim.row for claim, _ in endings),
            **different,
            "holder": endings[0][0].holder,
        }
        found = self._fetch(connection, statements.ADVANCE, parameters, **parts)
        transaction_id, told, turns = found[0]
        if told != len(turns):
            raise Parted
        return transaction_id, {endings[turn - 1][0].fence for turn in turns}

    def delete_receipts(self, connection: sa.Connection) -> int:
        return 0

    def locked(
        self, connection: Joinable, found: sa.Select[Any]
    ) -> sa.ColumnElement[bool]:
        """By the places of the rows that ``found`` locks: it runs once, and there is no join to
        choose.

        After ``IN`` it stands on the inner side of a loop, and is run for each row, where the
        planner takes the table for a small one. Its conditions are repeated within a CASE, which
        no index fits.
        """
        place: sa.ColumnElement[object] = sa.literal_column("ctid")
        places = found.with_only_columns(place).with_for_update(skip_locked=True)
        asked = sa.true() if found.whereclause is None else found.whereclause
        still = sa.case((asked, sa.true()), else_=sa.false())
        return sa.and_(
            place == sa.any_(sa.func.array(places.scalar_subquery())), still
        )

    def insert_turn(
        self, connection: sa.Connection, row: Mapping[str, object]
    ) -> bool:
        """Race: of two that do it at once, one gets this lock, and the other does not wait."""
        key = f"{self._names['tasks']}/{row['task_name']}"
        hashed = sa.func.pg_catalog.hashtextextended(key, 0, type_=sa.BigInteger)
        is_first = sa.select(sa.func.pg_catalog.pg_try_advisory_xact_lock(hashed))
        return bool(connection.scalar(is_first)) and super().insert_turn(
            connection, row
        )

    def hold(
        self, connection: sa.Connection, claims: Sequence[Claim], *, wait: bool
    ) -> list[Held]:
        ordered = sorted(claims, key=lambda claim: claim.key)
        parameters = {
            **fences(claim.row for claim in ordered),
            "holders": [claim.holder for claim in ordered],
        }
        found = self._fetch(
            connection,
            statements.HOLD,
            parameters,
            skip="" if wait else " SKIP LOCKED",
        )
        return [
            Held(row=row_of(values), now=now, transaction_id=transaction_id)
            for now, transaction_id, *values in found
        ]

    def _read_entries(
        self,
        connection: sa.Connection,
        keys: Sequence[LedgerKey],
        *,
        skip_locked: bool | None,
    ) -> dict[LedgerKey, LedgerEntry]:
        parameters = {**keys_of(keys), "slots": [key.slot for key in keys]}
        lock = _ENTRY_LOCKS[skip_locked]
        names = ("outcome", "token", "final", "aborted", "started")
        found = self._fetch(connection, statements.ENTRIES, parameters, lock=lock)
        return {
            LedgerKey(name, instance, slot): LedgerEntry(
                **dict(zip(names, values, strict=True))
            )
            for name, instance, slot, *values in found
        }

    def release(self, connection: sa.Connection, changes: Sequence[Change]) -> None:
        removed = [one.held.row for one in changes if one.transition.remove]
        nothing = {"arrays": "", "changed": ""}
        count = 0
        if removed:
            fenced = held_fences(removed)
            count += self._run(
                connection, statements.REMOVE, fenced, **nothing
            ).rowcount
        for kept in _by_columns(changes):
            rows = [one.held.row for one, _ in kept]
            parameters, parts = spread(
                [columns for _, columns in kept], CHANGED_COLUMNS
            )
            parameters |= held_fences(rows)
            count += self._run(
                connection, statements.RELEASE, parameters, **parts
            ).rowcount
        expect(count, len(changes), changes[0].held.row)
        self._record_all(connection, changes)

    def _record_all(
        self, connection: sa.Connection, changes: Sequence[Change]
    ) -> None:
        written = [
            one for one in changes if one.transition.record and one.held.row.ledger_key
        ]
        self.record(connection, [one for one in written if one.never_began])
        if recorded := [one for one in written if not one.never_began]:
            values = [one.recorded for one in recorded]
            parameters, parts = spread(values, RECORDED_COLUMNS, added="s")
            parameters |= ledger_fences([one.held.row for one in recorded])
            self._run(connection, statements.RECORD, parameters, **parts)

    def mark_running(self, connection: sa.Connection, claim: Claim) -> bool:
        key = claim.row.ledger_key
        assert key is not None
        parameters = {
            "name": key.task_name,
            "instance": key.task_instance,
            "slot": key.slot,
            "token": claim.token,
            "holder": claim.holder,
        }
        return self._run(connection, statements.MARK, parameters).rowcount == 1

    def mark_tasks(
        self, connection: sa.Connection, claims: Sequence[Claim]
    ) -> set[Fence]:
        ordered = sorted(claims, key=lambda claim: claim.key)
        parts = {"column": "marked", "skip": "", "unmarked": " AND h.marked IS NULL"}
        return self._beat(
            connection,
            claims[0].holder,
            ordered,
            durably=f",\n    {statements.DURABLY}",
            **parts,
        )

    def beat(
        self, connection: sa.Connection, holder: str, claims: Sequence[Claim]
    ) -> set[Fence]:
        parts = {
            "column": "last_heartbeat",
            "skip": " SKIP LOCKED",
            "unmarked": "",
            "durably": "",
        }
        return self._beat(connection, holder, claims, **parts)

    def _beat(
        self,
        connection: sa.Connection,
        holder: str,
        claims: Sequence[Claim],
        **parts: str,
    ) -> set[Fence]:
        parameters = {**fences(claim.row for claim in claims), "holder": holder}
        found = self._fetch(connection, statements.BEAT, parameters, **parts)
        return {
            Fence(Key(name, instance), version)
            for name, instance, version, *_ in found
        }

    def task_statements(self, wake: timedelta | None) -> TaskStatements:
        return PostgreSQLTasks(self, wake)


def _by_columns(
    changes: Sequence[Change],
) -> Iterable[Sequence[tuple[Change, Mapping[str, object]]]]:
    """Return the rows that stay, with what is written of each, in parts of the same columns."""
    found: dict[tuple[str, ...], list[tuple[Change, Mapping[str, object]]]] = {}
    for one in changes:
        if one.transition.row is not None:
            columns = stored(one.held.row, one.transition.row)
            found.setdefault(tuple(columns), []).append((one, columns))
    return found.values()


def _numbered(
    statement: str, parameters: Mapping[str, object]
) -> tuple[str, tuple[object, ...]]:
    """Return the statement with $1, $2 … in place of names, and its values in that order.

    A string is sent as text, and the server casts it: asyncpg would want a list for an array.
    """
    places: dict[str, int] = {}

    def place(match: re.Match[str]) -> str:
        name = match[1]
        number = places.setdefault(name, len(places) + 1)
        return (
            f"${number}::text" if isinstance(parameters[name], str) else f"${number}"
        )

    text = _PARAMETER.sub(place, statement)
    return text, tuple(parameters[name] for name in places)
