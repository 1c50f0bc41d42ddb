"""The tables as SQLAlchemy sees them. The migrations make them; a test holds the two together."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import BigInteger, Boolean, Float, Integer, LargeBinary, SmallInteger, Text

from slotwise.model.vocabulary import Kind
from slotwise.store.schema.column_types import Duration, Instant, Json

#: The schema that this code reads and writes; kept in ``scheduled_meta`` by the migrations.
SCHEMA_VERSION = 1
#: The revision that made it. Later ones change no column, and can be repeated.
SCHEMA_REVISION = "sw0001"

#: Conditions as text, for the partial indexes and the statements that use them.
HAS_SLOT = f"kind <> '{Kind.TASK}'"
IS_TASK = f"kind = '{Kind.TASK}'"
#: Ledger rows of recurring instances. Those of a job's own row are in the order of the key.
OF_INSTANCES = "task_instance <> 'recurring'"
#: The row of the meta table that exists while all is paused.
PAUSED_KEY = "paused"
#: The order of priorities, the highest first.
RANK = "-coalesce(priority, 50)"
#: Priority orders the oldest due slots only: so many of them.
WINDOW = 1000
#: How many held rows are read at once: those with the oldest heartbeats, among which are all that may be dead.
MOST_HELD = 10_000


class Tables:
    """All tables under one prefix, in one PostgreSQL schema (None: the connection's default)."""

    def __init__(self, prefix: str = "scheduled_", schema: str | None = None, database: str | None = None) -> None:
        self.prefix = prefix
        self.schema = schema
        # SQLAlchemy loads each dialect that an index names, so name only the one in use.
        self._partial = [f"{name}_where" for name in ("postgresql", "sqlite") if database in (None, name)]
        self.metadata = sa.MetaData(schema=schema)
        self.tasks = self._table("tasks", *columns_of_db_scheduler(), *_own_columns(), *self._queues())
        self.slots = self._slots()
        required = "last_slot count reason created"
        self.gaps = self._table(
            "gaps",
            *_key("first_slot"),
            *_columns(required, last_slot=Instant, count=BigInteger, reason=Text, created=Instant),
            self._index("gaps_last", "task_name", "last_slot"),
        )
        #: Attempts that did not succeed.
        self.attempts = self._table(
            "attempts",
            *_key("slot"),
            sa.Column("token", BigInteger, primary_key=True),
            *_columns("number", number=Integer, worker=Text, claimed=Instant, started=Instant, ended=Instant),
            *_columns("outcome", outcome=Text, reason=Text, error=Text),
            self._index("attempts_ended", "ended"),
        )
        self.workers = self._table(
            "workers",
            sa.Column("worker", Text, primary_key=True),
            *_columns("host pid boot_id", host=Text, pid=Integer, boot_id=Text, tags=Text, tasks=Text, revision=Text),
            *_columns("version capacity", refused=Text, passed_over=Text, version=Text, capacity=Integer),
            *_columns("state started last_seen lease", state=Text, started=Instant, last_seen=Instant, lease=Duration),
            sa.Column("skew", Float),
        )
        self.controls = self._table(
            "controls",
            sa.Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
            *_columns("at author command", at=Instant, author=Text, command=Text, task_name=Text, slot=Instant),
            *_columns(arguments=Text, note=Text),
        )
        required = "revision weekend days updated"
        self.calendars = self._table(
            "calendars",
            sa.Column("name", Text, primary_key=True),
            *_columns(required, revision=BigInteger, weekend=Text, days=Text, updated=Instant),
        )
        #: Starts of tasks with ``rate_limit``, counted by time.
        self.starts = self._table(
            "starts",
            sa.Column("task_name", Text, primary_key=True),
            sa.Column("at", Instant, primary_key=True),
            *_columns("count", count=BigInteger),
        )
        #: Keys that limit or order tasks, while a task has them.
        self.keys = self._table(
            "keys",
            *(sa.Column(name, Text, primary_key=True) for name in ("task_name", "kind", "key")),
            *_columns(counts="running", head=Text, running=Integer, full_until=Instant),
        )
        #: Answers of transactions whose reply may have been lost.
        self.receipts = self._table(
            "receipts",
            sa.Column("receipt", Text, primary_key=True),
            *_columns("created expires", answer=Json, created=Instant, expires=Instant),
            self._index("receipts_expires", "expires"),
        )
        self.meta = self._table("meta", sa.Column("key", Text, primary_key=True), *_columns("value", value=Text))

    def _table(self, name: str, *parts: sa.Column[Any] | sa.Index) -> sa.Table:
        return sa.Table(f"{self.prefix}{name}", self.metadata, *parts)

    def _index(
        self, name: str, *columns: str | sa.TextClause, rows: str | None = None, given: str | None = None
    ) -> sa.Index:
        """Return an index of these rows only, or of those that have a column, so that others cost a claim nothing."""
        rows = f"{given} IS NOT NULL" if given else rows
        partial: dict[str, Any] = {} if rows is None else dict.fromkeys(self._partial, sa.text(rows))
        return sa.Index(f"{self.prefix}{name}", *columns, **partial)

    def _queues(self) -> list[sa.Index]:
        waiting = "NOT picked AND state IS NULL AND"
        rank = sa.text(f"({RANK})")
        return [
            self._index("tasks_due", "execution_time", rows=f"{waiting} {HAS_SLOT}"),
            self._index("tasks_queue", "task_name", rank, "execution_time", rows=f"{waiting} {IS_TASK}"),
            self._index("tasks_lost", "execution_time", rows=f"{waiting} lost_count > 0"),
            self._index("tasks_held", "picked_by", rows="picked"),
            self._index("tasks_parked", "state", "task_name", "task_instance", given="state"),
            self._index("tasks_beside", "task_name", "plan_instance", given="plan_instance"),
            self._index("tasks_ordered", "task_name", "order_key", "created_version", given="order_key"),
        ]

    def _slots(self) -> sa.Table:
        return self._table(
            "slots",
            *_key("slot"),
            *_columns("outcome", outcome=Text, reason=Text),
            sa.Column("origin", Text, nullable=False, server_default=sa.text("'schedule'")),
            *_columns(counts="attempts lost aborted", attempts=Integer, lost=Integer, aborted=Integer),
            *_columns(counts="collapsed", collapsed=BigInteger, token=BigInteger, worker=Text, started=Instant),
            *_columns(started_before=Instant, finished=Instant, error=Text, result=LargeBinary, expires=Instant),
            self._index("slots_expires", "expires", given="expires"),
            self._index("slots_of_instances", "task_name", "slot", rows=OF_INSTANCES),
        )


def _columns(required: str = "", *, counts: str = "", **kinds: Any) -> Iterator[sa.Column[Any]]:
    """Yield columns by name and type: nullable, ``required``, or a count that begins at zero."""
    for name, kind in kinds.items():
        default = sa.text("0") if name in counts.split() else None
        yield sa.Column(name, kind, nullable=default is None and name not in required.split(), server_default=default)


def _key(slot: str) -> list[sa.Column[Any]]:
    kinds = {"task_name": Text, "task_instance": Text, slot: Instant}
    return [sa.Column(name, kind, primary_key=True) for name, kind in kinds.items()]


def columns_of_db_scheduler() -> list[sa.Column[Any]]:
    """Return the twelve columns of db-scheduler's table."""
    return [
        sa.Column("task_name", Text, primary_key=True),
        sa.Column("task_instance", Text, primary_key=True),
        *_columns("execution_time picked", task_data=LargeBinary, execution_time=Instant, picked=Boolean),
        *_columns(picked_by=Text, last_success=Instant, last_failure=Instant, consecutive_failures=Integer),
        *_columns("version", last_heartbeat=Instant, version=BigInteger),
        sa.Column("priority", SmallInteger, server_default=sa.text("50")),
    ]


def _own_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("kind", Text, nullable=False, server_default=sa.text(f"'{Kind.TASK}'")),
        *_columns(slot=Instant, watermark=Instant, next_slot=Instant, schedule=Text, plan=Json, plan_instance=Text),
        *_columns(counts="collapsed", origin=Text, collapsed=BigInteger, created_version=BigInteger),
        *_columns(counts="attempt lost_count", attempt=Integer, lost_count=Integer, lease=Duration, state=Text),
        *_columns(parked_due=Instant, wanted_due=Instant, waits_for=Integer, cancel_requested=Instant),
        *_columns(unheld_since=Instant, last_error=Text, control=BigInteger, pending=Json, marked=Instant),
        *_columns(limit_key=Text, order_key=Text, period=Duration, anchor=Instant),
    ]


def of_plan(rows: sa.FromClause, instance: Any) -> sa.ColumnElement[bool]:
    """Whether a row is this instance's plan row or one of its detached rows; an index finds either."""
    return sa.or_(rows.c.task_instance == instance, rows.c.plan_instance == instance)


def runs_on(rows: sa.FromClause) -> sa.ColumnElement[str | None]:
    """Return the tags that a job's row requires, as a JSON array."""
    found: sa.ColumnElement[str | None] = rows.c.plan["runs_on"].as_string()
    return found


def is_task(rows: sa.FromClause) -> sa.ColumnElement[bool]:
    return _is_of(rows, Kind.TASK)


def is_plan(rows: sa.FromClause) -> sa.ColumnElement[bool]:
    """Whether a row is the own row of a job, or of an instance of it."""
    return _is_of(rows, Kind.PLAN)


def is_detached(rows: sa.FromClause) -> sa.ColumnElement[bool]:
    """Whether a row is detached: it has one slot, beside a plan row."""
    return _is_of(rows, Kind.DETACHED)


def _is_of(rows: sa.FromClause, kind: Kind) -> sa.ColumnElement[bool]:
    """Compare with a literal: with a parameter, a generic plan cannot use a partial index."""
    return rows.c.kind == sa.literal_column(f"'{kind}'", Text)


@lru_cache(maxsize=16)
def tables(prefix: str = "scheduled_", schema: str | None = None, database: str | None = None) -> Tables:
    """Return the tables of one prefix and schema for a kind of database, or for any."""
    return Tables(prefix, schema, database)
