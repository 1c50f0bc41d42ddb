"""The tables as SQLAlchemy sees them. The migrations make them; a test holds the two together."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Float,
    FromClause,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    TextClause,
    literal_column,
    or_,
    text,
)

from slotwise.model.vocabulary import Kind
from slotwise.store.schema.column_types import Duration, Instant, Json

#: The schema that this code reads and writes; kept in ``scheduled_meta`` by the migrations.
SCHEMA_VERSION = 1

#: As text, for the indexes of each kind and for the statements that use them.
HAS_SLOT = f"kind <> '{Kind.TASK}'"
IS_TASK = f"kind = '{Kind.TASK}'"
#: What the ledger knows of instances; the slots of a job's own row stand in order in the key.
OF_INSTANCES = "task_instance <> 'recurring'"
#: The row of the meta table that is there while all is paused.
PAUSED_KEY = "paused"
#: The order of priorities, the highest first.
RANK = "-coalesce(priority, 50)"
#: Of how many due slots, the oldest, the highest priority goes first.
WINDOW = 1000


class Tables:
    """All tables under one prefix, in one PostgreSQL schema (None: the connection's own), as ``database`` has them."""

    def __init__(self, prefix: str = "scheduled_", schema: str | None = None, database: str | None = None) -> None:
        self.prefix = prefix
        self.schema = schema
        # SQLAlchemy loads a dialect for each that is named: that of SQLite is of no use to a worker on PostgreSQL.
        self._partial = [f"{name}_where" for name in ("postgresql", "sqlite") if database in (None, name)]
        self.metadata = MetaData(schema=schema)
        self.tasks = self._table("tasks", *columns_of_db_scheduler(), *_own_columns(), *self._queues())
        self.slots = self._slots()
        self.gaps = self._table(
            "gaps",
            Column("task_name", Text, primary_key=True),
            Column("task_instance", Text, primary_key=True),
            Column("first_slot", Instant, primary_key=True),
            Column("last_slot", Instant, nullable=False),
            Column("count", BigInteger, nullable=False),
            Column("reason", Text, nullable=False),
            Column("created", Instant, nullable=False),
            self._index("gaps_last", "task_name", "last_slot"),
        )
        self.attempts = self._attempts()
        self.workers = self._workers()
        self.controls = self._table(
            "controls",
            Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
            Column("at", Instant, nullable=False),
            Column("author", Text, nullable=False),
            Column("command", Text, nullable=False),
            Column("task_name", Text),
            Column("slot", Instant),
            Column("arguments", Text),
            Column("note", Text),
        )
        self.calendars = self._table(
            "calendars",
            Column("name", Text, primary_key=True),
            Column("revision", BigInteger, nullable=False),
            Column("weekend", Text, nullable=False),
            Column("days", Text, nullable=False),
            Column("updated", Instant, nullable=False),
        )
        #: How many of a task with ``rate_limit`` have started, until about when.
        self.starts = self._table(
            "starts",
            Column("task_name", Text, primary_key=True),
            Column("at", Instant, primary_key=True),
            Column("count", BigInteger, nullable=False),
        )
        #: Keys by which tasks are limited or ordered, while any of them has a row.
        self.keys = self._table(
            "keys",
            Column("task_name", Text, primary_key=True),
            Column("kind", Text, primary_key=True),
            Column("key", Text, primary_key=True),
            Column("head", Text),
            Column("running", Integer, nullable=False, server_default=text("0")),
            Column("full_until", Instant),
        )
        #: Answers of transactions whose reply may have been lost, kept for a while.
        self.receipts = self._table(
            "receipts",
            Column("receipt", Text, primary_key=True),
            Column("answer", Json),
            Column("created", Instant, nullable=False),
            Column("expires", Instant, nullable=False),
            self._index("receipts_expires", "expires"),
        )
        self.meta = self._table("meta", Column("key", Text, primary_key=True), Column("value", Text, nullable=False))

    def _table(self, name: str, *parts: Column[Any] | Index) -> Table:
        return Table(f"{self.prefix}{name}", self.metadata, *parts)

    def _index(self, name: str, *columns: str | TextClause, rows: str | None = None) -> Index:
        """An index of these rows only: those that are held, paused or dead cost a claim nothing."""
        partial: dict[str, Any] = {} if rows is None else dict.fromkeys(self._partial, text(rows))
        return Index(f"{self.prefix}{name}", *columns, **partial)

    def _queues(self) -> list[Index]:
        waiting = "NOT picked AND state IS NULL AND"
        rank = text(f"({RANK})")
        return [
            self._index("tasks_due", "execution_time", rows=f"{waiting} {HAS_SLOT}"),
            self._index("tasks_queue", "task_name", rank, "execution_time", rows=f"{waiting} {IS_TASK}"),
            self._index("tasks_lost", "execution_time", rows=f"{waiting} lost_count > 0"),
            self._index("tasks_held", "picked_by", rows="picked"),
            self._index("tasks_parked", "state", "task_name", "task_instance", rows=_given("state")),
            self._index("tasks_beside", "task_name", "plan_instance", rows=_given("plan_instance")),
            self._index("tasks_ordered", "task_name", "order_key", "created_version", rows=_given("order_key")),
        ]

    def _slots(self) -> Table:
        return self._table(
            "slots",
            Column("task_name", Text, primary_key=True),
            Column("task_instance", Text, primary_key=True),
            Column("slot", Instant, primary_key=True),
            Column("outcome", Text, nullable=False),
            Column("reason", Text),
            Column("origin", Text, nullable=False, server_default=text("'schedule'")),
            Column("attempts", Integer, nullable=False, server_default=text("0")),
            Column("lost", Integer, nullable=False, server_default=text("0")),
            Column("aborted", Integer, nullable=False, server_default=text("0")),
            Column("collapsed", BigInteger, nullable=False, server_default=text("0")),
            Column("token", BigInteger),
            Column("worker", Text),
            Column("started", Instant),
            Column("started_before", Instant),
            Column("finished", Instant),
            Column("error", Text),
            Column("result", LargeBinary),
            Column("expires", Instant),
            self._index("slots_expires", "expires", rows=_given("expires")),
            self._index("slots_of_instances", "task_name", "slot", rows=OF_INSTANCES),
        )

    def _attempts(self) -> Table:
        """Attempts that did not simply succeed as the first of their slot."""
        return self._table(
            "attempts",
            Column("task_name", Text, primary_key=True),
            Column("task_instance", Text, primary_key=True),
            Column("slot", Instant, primary_key=True),
            Column("token", BigInteger, primary_key=True),
            Column("number", Integer, nullable=False),
            Column("worker", Text),
            Column("claimed", Instant),
            Column("started", Instant),
            Column("ended", Instant),
            Column("outcome", Text, nullable=False),
            Column("reason", Text),
            Column("error", Text),
            self._index("attempts_ended", "ended"),
        )

    def _workers(self) -> Table:
        return self._table(
            "workers",
            Column("worker", Text, primary_key=True),
            Column("host", Text, nullable=False),
            Column("pid", Integer, nullable=False),
            Column("boot_id", Text, nullable=False),
            Column("tags", Text),
            Column("tasks", Text),
            Column("revision", Text),
            Column("refused", Text),
            Column("passed_over", Text),
            Column("version", Text, nullable=False),
            Column("capacity", Integer, nullable=False),
            Column("state", Text, nullable=False),
            Column("started", Instant, nullable=False),
            Column("last_seen", Instant, nullable=False),
            Column("lease", Duration, nullable=False),
            Column("skew", Float),
        )


def columns_of_db_scheduler() -> list[Column[Any]]:
    """Twelve: same name, type and meaning."""
    return [
        Column("task_name", Text, primary_key=True),
        Column("task_instance", Text, primary_key=True),
        Column("task_data", LargeBinary),
        Column("execution_time", Instant, nullable=False),
        Column("picked", Boolean, nullable=False),
        Column("picked_by", Text),
        Column("last_success", Instant),
        Column("last_failure", Instant),
        Column("consecutive_failures", Integer),
        Column("last_heartbeat", Instant),
        Column("version", BigInteger, nullable=False),
        Column("priority", SmallInteger, server_default=text("50")),
    ]


def _own_columns() -> list[Column[Any]]:
    """Nullable, or with a default."""
    return [
        Column("kind", Text, nullable=False, server_default=text(f"'{Kind.TASK}'")),
        Column("slot", Instant),
        Column("watermark", Instant),
        Column("next_slot", Instant),
        Column("schedule", Text),
        Column("plan", Json),
        Column("plan_instance", Text),
        Column("origin", Text),
        Column("collapsed", BigInteger, nullable=False, server_default=text("0")),
        Column("created_version", BigInteger),
        Column("attempt", Integer, nullable=False, server_default=text("0")),
        Column("lost_count", Integer, nullable=False, server_default=text("0")),
        Column("lease", Duration),
        Column("state", Text),
        Column("parked_due", Instant),
        Column("wanted_due", Instant),
        Column("waits_for", Integer),
        Column("cancel_requested", Instant),
        Column("unheld_since", Instant),
        Column("last_error", Text),
        Column("control", BigInteger),
        Column("pending", Json),
        Column("marked", Instant),
        Column("limit_key", Text),
        Column("order_key", Text),
        Column("period", Duration),
        Column("anchor", Instant),
    ]


def _given(column: str) -> str:
    """Rows that have this column, for an index that is not to hold the others."""
    return f"{column} IS NOT NULL"


def of_plan(rows: FromClause, instance: Any) -> ColumnElement[bool]:
    """Whether a row of a task is this instance's plan row, or stands beside it: an index finds either."""
    return or_(rows.c.task_instance == instance, rows.c.plan_instance == instance)


def runs_on(rows: FromClause) -> ColumnElement[str | None]:
    """The tags that a job's row asks for, as the text of a list."""
    found: ColumnElement[str | None] = rows.c.plan["runs_on"].as_string()
    return found


def is_task(rows: FromClause) -> ColumnElement[bool]:
    """Whether a row is a one-time task's."""
    return _is_of(rows, Kind.TASK)


def is_plan(rows: FromClause) -> ColumnElement[bool]:
    """Whether a row is the own row of a job, or of an instance of it."""
    return _is_of(rows, Kind.PLAN)


def is_detached(rows: FromClause) -> ColumnElement[bool]:
    """Whether a row is that of one slot, beside a plan row."""
    return _is_of(rows, Kind.DETACHED)


def _is_of(rows: FromClause, kind: Kind) -> ColumnElement[bool]:
    """As a literal: of a parameter no generic plan knows that a partial index holds its rows."""
    return rows.c.kind == literal_column(f"'{kind}'", Text)


@lru_cache(maxsize=16)
def tables(prefix: str = "scheduled_", schema: str | None = None, database: str | None = None) -> Tables:
    """The tables of one prefix and schema, made once; ``database``: of this kind, else of any."""
    return Tables(prefix, schema, database)
