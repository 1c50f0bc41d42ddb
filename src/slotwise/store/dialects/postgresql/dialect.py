"""PostgreSQL (15 or newer): the hot statements, in batches, each as a method of the dialect."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import insert

from slotwise.decide.claim import Start
from slotwise.model.clock import Clock, host_now
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
from slotwise.model.vocabulary import Kind
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.dialects.conditions import of_key
from slotwise.store.dialects.port import ClaimRequest, Parted, Range
from slotwise.store.dialects.postgresql import statements
from slotwise.store.dialects.postgresql.numbered import numbered
from slotwise.store.dialects.postgresql.queue import PostgreSQLTasks
from slotwise.store.dialects.task_statements import Parameters, TaskStatements
from slotwise.store.dialects.upserts import Upserting
from slotwise.store.schema.column_types import Instant
from slotwise.store.schema.rows import (
    ADDED_COLUMNS,
    ADVANCED,
    CHANGED_COLUMNS,
    CLAIMED_DATA,
    FLAW,
    HOLD_COLUMNS,
    LAST_ATTEMPT,
    LAST_VERSION,
    LONGEST_LEASE,
    RECORDED_COLUMNS,
    ROW_COLUMNS,
    Change,
    Held,
    decided,
    expect,
    flawed,
    row_of,
    stored,
    utc,
)
from slotwise.store.schema.tables import MOST_HELD, WINDOW, Tables

_NOW = sa.text("SELECT pg_catalog.statement_timestamp()")

#: Columns of a held plan row that are empty as long as it runs one slot, and nobody has asked
#: anything of it.
UNASKED = ("pending", "state", "cancel_requested", "wanted_due", "parked_due", "control")


class PostgreSQL(Upserting):
    """The reference: whole batches, one statement each. Every verb of claims, held rows and the
    ledger is its own.
    """

    name = "postgresql"
    has_fast_finish = True
    is_one_statement = True
    insert = staticmethod(insert)

    def __init__(self, tables: Tables, clock: Clock) -> None:
        super().__init__(tables, clock)
        # A database's own language may sort in another way.
        self.key_order = (
            sa.collate(tables.tasks.c.task_name, "C"),
            sa.collate(tables.tasks.c.task_instance, "C"),
        )
        prepare = postgresql.dialect().identifier_preparer  # type: ignore[no-untyped-call]
        self._is_manual = clock.override() is not None
        self._names = {
            "now": "CAST(%(now)s AS timestamptz)"
            if self._is_manual
            else "pg_catalog.statement_timestamp()",
            **{
                table: prepare.format_table(getattr(tables, table))
                for table in ("tasks", "slots", "gaps", "meta")
            },
            "columns": ", ".join(f"t.{name}" for name in ROW_COLUMNS),
            "hold_columns": ", ".join(f"t.{name}" for name in HOLD_COLUMNS)
            .replace(
                "t.lease",
                f"CASE WHEN t.lease BETWEEN '0' AND '{LONGEST_LEASE.days} days' THEN t.lease END",
            )
            .replace("t.pending", "t.pending::text"),
            "last_version": str(LAST_VERSION),
            "last_attempt": str(LAST_ATTEMPT),
            "task_columns": ", ".join(TASK_COLUMNS),
            "slot_columns": ", ".join(SLOT_COLUMNS),
            "window": str(WINDOW),
            "most_held": str(MOST_HELD),
            "again": statements.AGAIN,
            "unasked": " AND ".join(f"t.{name} IS NULL" for name in UNASKED),
            # a settlement does not need the payload, which may be large
            "q_columns": ", ".join(f"q.{name}" for name in ROW_COLUMNS)
            .replace("q.task_data", "NULL::bytea")
            .replace("q.pending", "q.pending::text"),
        }
        for name in ("all_paused", "heads", "slots_are_due", "begin_of_own"):
            self._names[name] = getattr(statements, name.upper()).format(**self._names)
        #: Return a statement as it is sent, with quoted names and the expression for "now".
        self.sql = lru_cache(maxsize=256)(partial(str.format, **self._names))

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
            return connection.exec_driver_sql(*numbered(statement, parameters))
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

    def now(self, connection: Joinable) -> datetime:
        if (override := self.clock.override()) is not None:
            return override
        found = connection.execute(_NOW).fetchone()
        assert found is not None
        return cast("datetime", utc(found[0]))

    def ago(
        self, connection: Joinable, span: timedelta = timedelta(0)
    ) -> sa.ColumnElement[datetime]:
        if (override := self.clock.override()) is not None:
            return sa.literal(override - span, Instant)
        return sa.func.pg_catalog.statement_timestamp(type_=Instant) - sa.literal(
            span, sa.Interval
        )

    def transaction_id(self, connection: sa.Connection) -> str | None:
        found: str = connection.exec_driver_sql(
            "SELECT pg_catalog.pg_current_xact_id()::text"
        ).scalar_one()
        return found

    def committed(self, connection: sa.Connection, transaction_id: str) -> bool | None:
        status = connection.exec_driver_sql(
            "SELECT pg_catalog.pg_xact_status(%(id)s::xid8)", {"id": transaction_id}
        ).scalar_one()
        return {"committed": True, "aborted": False}.get(status)

    def claim(
        self, connection: sa.Connection, order: ClaimRequest
    ) -> list[tuple[Row, datetime, bool]]:
        parameters = {
            "holder": order.holder,
            "names": texts(order.names),
            "strict": texts(order.strict),
            "limit": order.limit,
            "lost": min(order.lost, order.limit),
            "lease": order.lease,
            "instance": order.instance,
            "weighed": texts(order.weighed),
            "late": order.late,
            "since": order.since,
        }
        if order.instance is None:
            kind = (
                statements.HAS_SLOT
                if order.since is None
                else statements.HAS_SLOT + statements.SINCE
            )
            parts = {"who": statements.OF_NAMES + self._names["all_paused"], "kind": kind}
        else:
            parts = {"who": statements.ONE, "kind": ""}
        fresh = self.sql(
            statements.OLDEST if order.is_level else statements.MOST_URGENT, **parts
        )
        found = self._fetch(connection, statements.CLAIM, parameters, **parts, fresh=fresh)
        if not found:
            return []
        now = found[0][0]
        return [(slot_of(values[2:], order, now), now, values[1]) for values in found]

    def due_names(
        self, connection: sa.Connection, limit: int, since: datetime | None
    ) -> Sequence[Sequence[Any]]:
        parameters = {"limit": limit, "since": since}
        behind = "" if since is None else statements.SINCE
        return self._fetch(connection, statements.DUE_NAMES, parameters, since=behind)

    def claim_tasks(
        self, connection: sa.Connection, order: ClaimRequest
    ) -> tuple[list[Row], bool]:
        names = order.names
        parameters = {
            "holder": order.holder,
            "tasks": texts(names),
            "limit": order.limit,
            "lease": order.lease,
        }
        parameters |= marked(map(Range, names) if order.ranges is None else order.ranges)
        most = "%(limit)s"
        if order.most:
            most = statements.MOST
            parameters["bounded"] = texts(order.most)
            parameters["most"] = integers(order.most.values())
        found = self._fetch(connection, statements.CLAIM_TASKS, parameters, most=most)
        return [
            task_of(values, order.holder) for values in sorted(found, key=_turn)
        ], not found or found[0][-1]

    def first_slots(
        self, connection: sa.Connection, limit: int, *, lost: int, since: datetime | None
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
        ((due, begin),) = self._fetch(connection, statements.NEXT_DUE, parameters, **parts)
        return due, begin

    def newest_decided(
        self, connection: sa.Connection, plans: Sequence[Key], strict: Collection[str]
    ) -> list[datetime | None]:
        parameters = {**keys_of(plans), "strict": list(strict)}
        return [
            utc(newest)
            for (newest,) in self._fetch(connection, statements.NEWEST, parameters)
        ]

    def begin(
        self,
        connection: sa.Connection,
        started: Sequence[Row],
        now: datetime,
        strict: Collection[str],
    ) -> set[Key]:
        parameters, parts = spread([decided(row) for row in started], CHANGED_COLUMNS)
        parameters |= {
            **fences(started),
            "holder": started[0].picked_by,
            "strict": list(strict),
            "claimed_at": now,
        }
        found = self._fetch(connection, statements.BEGIN, parameters, **parts)
        expect(found[0][0], len(started), started[0])
        return {Key(name, instance) for _, name, instance in found if name is not None}

    def start_alike(
        self,
        connection: sa.Connection,
        rows: Sequence[Row],
        start: Start,
        now: datetime,
        strict: Collection[str],
    ) -> set[Key] | None:
        gap = start.gaps[0] if start.gaps else None
        parameters = {
            **fences(rows),
            **decided(start.row),
            "holder": rows[0].picked_by,
            "strict": texts(strict),
            "at": now,
            "since": rows[0].slot,
            "beyond": rows[0].slot if gap is None else gap.after or gap.first,
            **{
                name: gap and getattr(gap, name)
                for name in ("first", "last", "count", "reason")
            },
            "asked": len(rows),
        }
        parameters["pending"] = parameters["pending"] and json.dumps(parameters["pending"])
        found = self._fetch(
            connection, statements.START_ALIKE, parameters, arrays="", changed=""
        )
        if found[0][0]:
            return None
        return {Key(name, instance) for _, name, instance in found if name is not None}

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
            parts = self.close_open_slots(connection, row, gap, now)
            if parts != [gap]:
                whole = self.tables.gaps
                mine = (
                    *of_key(whole, row.plan_key),
                    whole.c.first_slot == gap.first,
                    whole.c.last_slot == gap.last,
                )
                connection.execute(whole.delete().where(*mine))
                super().gaps(connection, [(row, part) for part in parts], now)

    def finish(
        self, connection: sa.Connection, claims: Sequence[Claim]
    ) -> tuple[str | None, int]:
        # Twice, the second time by name: texts alone are compared faster than keys.
        ordered = sorted(claims, key=lambda claim: claim.row.task_instance)
        ordered.sort(key=lambda claim: claim.row.task_name)
        parameters = {**fences(claim.row for claim in ordered), "holder": claims[0].holder}
        transaction_id, count = self._fetch(connection, statements.FINISH, parameters)[0]
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

    def hurry(self, connection: sa.Connection, wait: timedelta) -> None:
        connection.exec_driver_sql(
            f"SET LOCAL lock_timeout = {wait // timedelta(milliseconds=1)}"
        )

    def delete_receipts(self, connection: sa.Connection) -> int:
        return 0

    def locked(self, connection: Joinable, found: sa.Select[Any]) -> sa.ColumnElement[bool]:
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
        return sa.and_(place == sa.any_(sa.func.array(places.scalar_subquery())), still)

    def merged(
        self, document: sa.ColumnElement[object], changes: Mapping[str, object]
    ) -> sa.ColumnElement[object]:
        both = sa.cast(document, postgresql.JSONB).concat(
            sa.cast(changes, postgresql.JSONB)
        )
        return sa.cast(both, document.type)

    def among(
        self, column: sa.ColumnElement[str], names: Collection[str]
    ) -> sa.ColumnElement[bool]:
        """One parameter: a statement has at most 65,535."""
        return column == sa.any_(sa.cast(list(names), postgresql.ARRAY(sa.Text)))

    def alone(self, connection: sa.Connection, name: str) -> bool:
        """By the lock of a row that only a worker's rights can lock; an advisory lock could be
        held by any role.

        Race: of two transactions that insert it, the second would wait for the first, so one of
        them does not insert.
        """
        keys = self.tables.keys
        row = {"task_name": name, "kind": "turn", "key": ""}
        mine = sa.select(keys.c.running).where(
            *(keys.c[column] == value for column, value in row.items())
        )
        if connection.execute(mine.with_for_update(skip_locked=True)).first() is not None:
            return True
        is_first = connection.scalar(
            sa.select(sa.func.pg_catalog.pg_try_advisory_xact_lock(self._lock_key(name, 0)))
        )
        return bool(is_first) and self.insert_new(connection, keys, row)

    def latch(self, connection: sa.Connection, name: str, *, shared: bool) -> None:
        functions = sa.func.pg_catalog
        lock = (
            functions.pg_advisory_xact_lock_shared
            if shared
            else functions.pg_advisory_xact_lock
        )
        connection.execute(sa.select(lock(self._lock_key(name, 1))))

    def _lock_key(self, name: str, seed: int) -> sa.ColumnElement[int]:
        """The key of an advisory lock. Built, not text: the connection may be a caller's, of any
        driver.
        """
        key = f"{self._names['tasks']}/{name}"
        return sa.func.pg_catalog.hashtextextended(key, seed, type_=sa.BigInteger)

    def guard(self, connection: Joinable, claim: Claim) -> bool:
        """FOR SHARE, or FOR KEY SHARE of a one-time task's row: no heartbeat needs those locks."""
        limit = f"{max(int(claim.lease.total_seconds() * 1000), 1)}ms"
        connection.execute(
            sa.select(
                sa.func.pg_catalog.set_config(
                    "idle_in_transaction_session_timeout", limit, True
                )
            )
        )
        return self._shares(connection, claim, key_only=True)

    def hold(
        self, connection: sa.Connection, claims: Sequence[Claim], *, wait: bool
    ) -> list[Held]:
        ordered = sorted(claims, key=lambda claim: claim.key)
        parameters = {
            **fences(claim.row for claim in ordered),
            "holders": [claim.holder for claim in ordered],
        }
        found = self._fetch(
            connection, statements.HOLD, parameters, skip="" if wait else " SKIP LOCKED"
        )
        return [
            Held(row=row_of(values), now=now, place=place, transaction_id=transaction_id)
            for now, transaction_id, place, *values in found
        ]

    def lock(
        self, connection: sa.Connection, keys: Iterable[Key], *, wait: bool
    ) -> set[Key]:
        ordered = sorted(keys)
        parameters = keys_of(ordered)
        locked = self._fetch(
            connection,
            statements.LOCK,
            parameters,
            lock="FOR UPDATE" + " SKIP LOCKED" * (not wait),
        )
        if wait:
            return set()
        there = self._fetch(connection, statements.LOCK, parameters, lock="OFFSET 0")
        return {Key(*key) for key in there} - {Key(*key) for key in locked}

    def entries(
        self, connection: sa.Connection, keys: Sequence[LedgerKey], *, wait: bool
    ) -> dict[LedgerKey, tuple[LedgerEntry | None, str | None]]:
        if not keys:
            return {}
        found = self._entries(
            connection, sorted(keys), "FOR UPDATE" if wait else "FOR UPDATE SKIP LOCKED"
        )
        absent = [key for key in keys if key not in found]
        # Not returned is not "not there": with SKIP LOCKED it may be locked by a user's guard.
        # Look without a lock.
        exists = {} if wait or not absent else self._entries(connection, absent, "OFFSET 0")
        return {**found, **{key: (None, None) for key in absent if key not in exists}}

    def _entries(
        self, connection: sa.Connection, keys: Sequence[LedgerKey], lock: str
    ) -> dict[LedgerKey, tuple[LedgerEntry | None, str | None]]:
        parameters = {**keys_of(keys), "slots": [key.slot for key in keys]}
        return {
            LedgerKey(name, instance, slot): (
                LedgerEntry(
                    outcome=outcome,
                    token=token,
                    final=final,
                    aborted=aborted,
                    started=started,
                ),
                place,
            )
            for place, name, instance, slot, outcome, token, final, aborted, started in self._fetch(
                connection, statements.ENTRIES, parameters, lock=lock
            )
        }

    def release(self, connection: sa.Connection, changes: Sequence[Change]) -> None:
        """Write by place what ``hold`` has locked, and by key what this transaction has claimed."""
        if changes[0].held.place is None:
            super().release(connection, changes)
            return
        removed = [change for change in changes if change.transition.remove]
        kept = [change for change in changes if not change.transition.remove]
        count = 0
        if removed:
            nothing = {"arrays": "", "changed": ""}
            count += self._run(
                connection, statements.REMOVE, places(removed), **nothing
            ).rowcount
        if kept:
            rows = [
                stored(change.held.row, change.transition.row)
                for change in kept
                if change.transition.row
            ]
            parameters, parts = spread(rows, CHANGED_COLUMNS)
            count += self._run(
                connection, statements.RELEASE, {**places(kept), **parameters}, **parts
            ).rowcount
        expect(count, len(changes), changes[0].held.row)
        written = [
            change for change in changes if change.ledger_place and change.transition.record
        ]
        self.record(connection, [change for change in written if change.never_began])
        if recorded := [change for change in written if not change.never_began]:
            parameters, parts = spread(
                [change.recorded for change in recorded], RECORDED_COLUMNS, added="s"
            )
            self._run(
                connection,
                statements.RECORD,
                {**ledger_places(recorded), **parameters},
                **parts,
            )

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

    def mark_tasks(self, connection: sa.Connection, claims: Sequence[Claim]) -> set[Fence]:
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
        self, connection: sa.Connection, holder: str, claims: Sequence[Claim], **parts: str
    ) -> set[Fence]:
        parameters = {**fences(claim.row for claim in claims), "holder": holder}
        found = self._fetch(connection, statements.BEAT, parameters, **parts)
        return {
            Fence(Key(name, instance), version) for name, instance, version, *_ in found
        }

    def silent_rows(
        self, connection: sa.Connection, names: Sequence[str]
    ) -> tuple[datetime, list[Row]]:
        found = self._fetch(connection, statements.SILENT, {"names": list(names)})
        now = (
            found[0][0] if found else self.clock.override() or host_now()
        )  # about no row it is of no use
        return now, [row_of(values[1:], names=HOLD_COLUMNS) for values in found]

    def task_statements(self, wake: timedelta | None) -> TaskStatements:
        return PostgreSQLTasks(self, wake)


#: By the first two of TASK_COLUMNS: the highest priority first, and then the oldest.
_turn = itemgetter(0, 1)


def _qualified(expression: str) -> str:
    """Name the schema of the one function in what all databases read of a row."""
    return expression.replace("length(", "pg_catalog.length(")


#: What a claim reads of a slot's row: what it has written itself is known. A watermark at the
#: slot, as most are then, is left out.
SLOT_COLUMNS = (
    "task_name",
    "task_instance",
    "execution_time",
    "version",
    _qualified(CLAIMED_DATA),
    "last_success",
    "last_failure",
    "consecutive_failures",
    "priority",
    "kind",
    "slot",
    "CASE WHEN kind <> 'plan' OR watermark IS DISTINCT FROM slot THEN watermark END",
    "next_slot",
    "schedule",
    "plan_instance",
    "origin",
    "collapsed",
    "created_version",
    "attempt",
    "lost_count",
    "cancel_requested",
    "control",
    "parked_due",
    "wanted_due",
    "unheld_since",
    "pending::text",
    _qualified(FLAW),
)

#: What a claim reads of a one-time task: the rest of its columns is empty, or read again by the
#: settlement. Most have their first due time in the place of a slot: it is read only if it
#: differs.
TASK_COLUMNS = (
    "-coalesce(t.priority, 50)",
    "t.execution_time",
    "t.task_name",
    "t.task_instance",
    "t.version",
    _qualified(CLAIMED_DATA),
    "t.slot IS NOT DISTINCT FROM t.execution_time",
    "nullif(t.slot, t.execution_time)",
    "t.created_version",
    "t.attempt",
    "t.cancel_requested",
    "t.last_heartbeat",
    _qualified(FLAW),
)


def slot_of(values: Sequence[Any], order: ClaimRequest, now: datetime) -> Row:
    """Return a Row of values in the order of SLOT_COLUMNS; one is built for each slot that
    runs.
    """
    (
        name,
        instance,
        due,
        version,
        data,
        last_success,
        last_failure,
        failures,
        priority,
        kind,
        slot,
        watermark,
        next_slot,
        schedule,
        plan_instance,
        origin,
        collapsed,
        created,
        attempt,
        lost_count,
        cancel,
        control,
        parked,
        wanted,
        unheld_since,
        waits,
        flaw,
    ) = values
    watermark = slot if watermark is None and kind == Kind.PLAN else watermark
    row = Row(
        task_name=name,
        task_instance=instance,
        execution_time=due,
        version=version,
        picked=True,
        picked_by=order.holder,
        task_data=data,
        last_success=last_success,
        last_failure=last_failure,
        consecutive_failures=min(failures or 0, LAST_ATTEMPT),
        last_heartbeat=now,
        priority=priority,
        kind=kind,
        slot=slot,
        watermark=watermark,
        next_slot=next_slot,
        schedule=schedule,
        plan_instance=plan_instance,
        origin=origin,
        collapsed=collapsed,
        created_version=created,
        attempt=attempt,
        lost_count=lost_count,
        lease=order.lease,
        cancel_requested=cancel,
        control=control,
        parked_due=parked,
        wanted_due=wanted,
        unheld_since=unheld_since,
    )
    return row if waits is None and flaw is None else flawed(row, waits, flaw)


def task_of(values: Sequence[Any], holder: str) -> Row:
    """Return a Row of values in the order of TASK_COLUMNS; one is built for each task that
    runs.
    """
    (
        rank,
        due,
        name,
        instance,
        version,
        data,
        slot_is_due,
        slot,
        created,
        attempt,
        cancel,
        claimed,
        flaw,
        _,
    ) = values
    return Row(
        task_name=name,
        task_instance=instance,
        execution_time=due,
        version=version,
        picked=True,
        picked_by=holder,
        priority=-rank,
        task_data=data,
        slot=due if slot_is_due else slot,
        created_version=created,
        attempt=attempt,
        cancel_requested=cancel,
        last_heartbeat=claimed,
        flaw=flaw,
    )


# -- what statements take as arrays ---------------------------------------------------------------


def texts(values: Collection[str]) -> str:
    """A text[] as the server reads it; the driver would take ten times as long to write one."""
    if not values:
        return "{}"
    joined = '","'.join(values)
    if "\\" in joined or joined.count('"') > 2 * (len(values) - 1):
        joined = '","'.join(
            value.replace("\\", "\\\\").replace('"', '\\"') for value in values
        )
    return f'{{"{joined}"}}'


def integers(values: Iterable[int]) -> str:
    """An array of integers, as ``texts``."""
    return f"{{{','.join(map(str, values))}}}"


def instants(values: Sequence[datetime | None]) -> str:
    """An array of instants, as ``texts``; most of a batch are the same."""
    written = {value: "NULL" if value is None else f'"{value}"' for value in set(values)}
    return f"{{{','.join([written[value] for value in values])}}}"


def keys_of(rows: Iterable[Key | LedgerKey | Row]) -> Parameters:
    """Names and instances as arrays, in the order in which the rows are to be locked."""
    rows = list(rows)
    return {
        "names": texts([row.task_name for row in rows]),
        "instances": texts([row.task_instance for row in rows]),
    }


def fences(rows: Iterable[Row]) -> Parameters:
    """As ``keys_of``, with the versions."""
    rows = list(rows)
    return {**keys_of(rows), "versions": integers(row.version for row in rows)}


def marked(ranges: Iterable[Range]) -> Parameters:
    """Return the parameters of ``HEADS``."""
    ranges = list(ranges)
    return {
        "heads": texts([one.task_name for one in ranges]),
        "firsts": integers(one.first for one in ranges),
        "lasts": integers(one.last for one in ranges),
        "sinces": texts(
            ["-infinity" if one.since is None else one.since.isoformat() for one in ranges]
        ),
    }


def spread(
    rows: Sequence[Mapping[str, object]],
    kinds: Mapping[str, str],
    *,
    added: str | None = None,
) -> tuple[Parameters, dict[str, str]]:
    """Return parameters and parts of a statement that writes the columns of these rows.

    ``added``: the alias of the table whose counts (ADDED_COLUMNS) are added to.
    """
    columns = {name: [row[name] for row in rows] for name in kinds if name in rows[0]}
    parameters, parts = varying(columns, kinds)
    values = {name: parts.pop(name) for name in columns}
    if added is not None:
        values |= {name: f"{added}.{name} + {values[name]}" for name in ADDED_COLUMNS}
    return parameters, {
        **parts,
        "sets": ", ".join(f"{name} = {value}" for name, value in values.items()),
    }


def varying(
    columns: Mapping[str, list[Any]], kinds: Mapping[str, str]
) -> tuple[Parameters, dict[str, str]]:
    """Return parameters and parts for columns; each part that has a column's name is its value.

    A column that differs from row to row is an array. One that is the same in all rows, as most
    are, is one value.
    """
    parameters: Parameters = {}
    parts = {"arrays": "", "changed": ""}
    for name, values in columns.items():
        kind = kinds[name]
        parameter = f"c_{name}"
        if kind == "json":
            values = [None if value is None else json.dumps(value) for value in values]
        if values.count(values[0]) == len(values):
            parameters[parameter], parts[name] = values[0], f"%({parameter})s::{kind}"
        else:
            parameters[parameter], parts[name] = (
                instants(values) if kind == "timestamptz" else values,
                f"i.{name}",
            )
            parts["arrays"] += f", %({parameter})s::{kind}[]"
            parts["changed"] += f", {name}"
    return parameters, parts


def places(changes: Sequence[Change]) -> Parameters:
    return {
        **fences(change.held.row for change in changes),
        "holders": [change.held.row.picked_by for change in changes],
        "places": [change.held.place for change in changes],
    }


def ledger_places(changes: Sequence[Change]) -> Parameters:
    keys = [key for change in changes if (key := change.held.row.ledger_key)]
    return {
        **keys_of(keys),
        "slots": [key.slot for key in keys],
        "tokens": [change.held.row.version for change in changes],
        "places": [change.ledger_place for change in changes],
    }
