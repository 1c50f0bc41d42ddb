"""The tables as SQLAlchemy sees them. The migrations make them; a test holds the two together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa
from sqlalchemy import (
    BigInteger,
    Boolean,
    Float,
    Integer,
    LargeBinary,
    SmallInteger,
    Text,
)

from slotwise.model.vocabulary import Kind
from slotwise.store.schema.column_types import Duration, Instant, Json

#: The columns of a table, or of an alias of one.
Columns: TypeAlias = "sa.ColumnCollection[str, Expression]"
#: A part of a statement that has a value.
Expression: TypeAlias = "sa.ColumnElement[Any]"
#: What a row is to meet.
Condition: TypeAlias = "sa.ColumnElement[bool]"
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
#: The row of the meta table with the installation's id.
INSTALLATION_KEY = "installation_id"
#: The order of priorities, the highest first.
RANK = "-coalesce(priority, 50)"
#: Priority orders the oldest due slots only: so many of them.
WINDOW = 1000
#: How many held rows are read at once: those with the oldest heartbeats, among which are all that
#: may be dead.
MOST_HELD = 10_000

#: The columns of each table, as ``name=default``: "*" is part of its key, "!" is never null,
#: "#" is numbered by the database. The first twelve of a task are those of db-scheduler.
_COLUMNS = {
    "tasks": f"""
        task_name* task_instance* task_data execution_time! picked! picked_by last_success
        last_failure consecutive_failures last_heartbeat version! priority=50
        kind='{Kind.TASK}'! slot watermark next_slot schedule plan plan_instance origin
        collapsed=0! created_version attempt=0! lost_count=0! lease state parked_due wanted_due
        waits_for cancel_requested unheld_since last_error control pending marked limit_key
        order_key""",
    "slots": """
        task_name* task_instance* slot* outcome! reason origin='schedule'! attempts=0! lost=0!
        aborted=0! collapsed=0! token worker started started_before finished error result
        expires""",
    "gaps": "task_name* task_instance* first_slot* last_slot! count! reason! created!",
    "attempts": """
        task_name* task_instance* slot* token* number! worker claimed started ended outcome!
        reason error""",
    "workers": """
        worker* host! pid! boot_id! tags tasks revision refused passed_over version! capacity!
        state! started! last_seen! lease! skew""",
    "controls": "id* at! author! command! task_name slot arguments note",
    "calendars": "name* revision! weekend! days! updated!",
    "starts": "task_name* at* count!",
    "keys": "task_name* kind* key* head running=0! full_until",
    "receipts": "receipt* answer created! expires!",
    "meta": "key* value!",
    "deploys": "task_name* task_instance* at* former schedule! revision worker!",
    "worker_history": """
        worker* host! version! revision capacity! tags tasks started! drained ended outcome
        reason""",
    "counts": "task_name* hour* kind* outcome* reason* count! pruned=0!",
    "pauses": "task_name* scope* task_instance* created! until missed! author! note",
    "incidents": """
        kind* name* number* version! opened! seen! closed summary! delivered! next_attempt
        attempts! error""",
    "silences": "kind* name* created! until! author! note",
    "instances": "task_name* task_instance* scope! tags updated!",
    "scopes": "task_name* scope* token! begun! finished",
    "checkpoints": "task_name* task_instance* slot* token! updated! value! done total",
    "events": "id#* name! key data published! fanned_out handlers=0!",
    "event_handlers": """
        handler* event* since_id! on_failure! priority former created! retired""",
    "set_aside": """
        task_name* source* row_key* state! tries! error first_failed! last_failed!""",
}
#: The types of those that are not text.
TYPES: dict[str, Any] = {
    name: kind
    for kind, names in (
        (
            Instant,
            "execution_time last_success last_failure last_heartbeat slot "
            "watermark next_slot parked_due",
        ),
        (
            Instant,
            "wanted_due cancel_requested unheld_since marked first_slot last_slot "
            "created claimed started ended drained hour",
        ),
        (
            Instant,
            "started_before finished expires at last_seen updated full_until until "
            "begun",
        ),
        (Instant, "opened seen closed next_attempt"),
        (Instant, "published fanned_out first_failed last_failed retired"),
        (Duration, "lease"),
        (BigInteger, "version created_version token collapsed count pruned control"),
        (BigInteger().with_variant(Integer, "sqlite"), "id"),
        (
            Integer,
            "consecutive_failures attempt lost_count waits_for attempts lost aborted number",
        ),
        (Integer, "pid capacity running handlers tries"),
        (BigInteger, "since_id done total"),
        (SmallInteger, "priority"),
        (Float, "skew"),
        (Boolean, "picked"),
        (Json, "plan pending answer"),
        (LargeBinary, "task_data result"),
    )
    for name in names.split()
}


class _Index(NamedTuple):
    """An index of these rows only, or of all. Rows without an entry cost a claim nothing."""

    name: str
    columns: Sequence[str]
    rows: str | None = None


def _has(column: str) -> str:
    return f"{column} IS NOT NULL"


_WAITING = "NOT picked AND state IS NULL AND"
_FAILING = "consecutive_failures > 0"
_INDEXES: dict[str, Sequence[_Index]] = {
    "tasks": (
        _Index("tasks_due", ("execution_time",), f"{_WAITING} {HAS_SLOT}"),
        _Index(
            "tasks_queue",
            ("task_name", f"({RANK})", "execution_time"),
            f"{_WAITING} {IS_TASK}",
        ),
        _Index("tasks_lost", ("execution_time",), f"{_WAITING} lost_count > 0"),
        _Index("tasks_held", ("picked_by",), "picked"),
        _Index("tasks_parked", ("state", "task_name", "task_instance"), _has("state")),
        _Index("tasks_beside", ("task_name", "plan_instance"), _has("plan_instance")),
        _Index(
            "tasks_ordered",
            ("task_name", "order_key", "created_version"),
            _has("order_key"),
        ),
        _Index("tasks_failing", ("task_name",), _FAILING),
    ),
    "slots": (
        _Index("slots_expires", ("expires",), _has("expires")),
        _Index("slots_of_instances", ("task_name", "slot"), OF_INSTANCES),
    ),
    "gaps": (_Index("gaps_last", ("task_name", "last_slot")),),
    "attempts": (_Index("attempts_ended", ("ended",)),),
    "receipts": (_Index("receipts_expires", ("expires",)),),
    "deploys": (_Index("deploys_at", ("at",)),),
    "worker_history": (_Index("worker_history_ended", ("ended",)),),
    "counts": (_Index("counts_hour", ("hour",)),),
    "pauses": (_Index("pauses_until", ("until",)),),
    "incidents": (_Index("incidents_opened", ("opened",)),),
    "silences": (_Index("silences_until", ("until",)),),
    "events": (
        _Index("events_waiting", ("id",), "fanned_out IS NULL"),
        _Index(
            "events_unhandled",
            ("name", "id"),
            "fanned_out IS NOT NULL AND handlers = 0",
        ),
    ),
    "instances": (
        _Index("instances_of_scope", ("task_name", "scope", "task_instance")),
    ),
}


class Tables:
    """All tables under one prefix, in one PostgreSQL schema (None: the connection's default)."""

    def __init__(
        self,
        prefix: str = "scheduled_",
        schema: str | None = None,
        database: str | None = None,
    ) -> None:
        self.prefix = prefix
        self.schema = schema
        self.metadata = sa.MetaData(schema=schema)
        # SQLAlchemy loads each dialect that an index names, so name only the one in use.
        self._partial = [
            f"{name}_where"
            for name in ("postgresql", "sqlite")
            if database in (None, name)
        ]
        self.tasks = self._table("tasks")
        self.slots = self._table("slots")
        self.gaps = self._table("gaps")
        #: Attempts that did not succeed.
        self.attempts = self._table("attempts")
        self.workers = self._table("workers", version=Text)
        self.controls = self._table("controls")
        self.calendars = self._table("calendars", revision=BigInteger)
        #: Starts of tasks with ``rate_limit``, counted by time.
        self.starts = self._table("starts")
        #: Keys that limit or order tasks, while a task has them.
        self.keys = self._table("keys")
        #: Answers of transactions whose reply may have been lost.
        self.receipts = self._table("receipts")
        self.meta = self._table("meta")
        #: How deploys have changed schedules.
        self.deploys = self._table("deploys")
        #: One row for each start of a worker.
        self.worker_history = self._table("worker_history", version=Text)
        #: Slots that have ended, by job, hour of the slot, outcome and reason.
        self.counts = self._table("counts")
        #: Pauses by name, which may end by themselves.
        self.pauses = self._table("pauses")
        #: What alarms have found, with the state of its messages.
        self.incidents = self._table("incidents")
        #: Which alarms send no message, and until when.
        self.silences = self._table("silences")
        #: The scope and tags of recurring instances that were synchronised.
        self.instances = self._table("instances")
        #: One row for each scope: its last synchronisation.
        self.scopes = self._table("scopes")
        #: What handlers have saved for their next attempts.
        self.checkpoints = self._table("checkpoints", value=LargeBinary)
        #: What was published, until its retention ends.
        self.events = self._table("events", data=LargeBinary)
        #: Which handlers there are for which events.
        self.event_handlers = self._table("event_handlers")
        #: Rows that the batches of a job could not process.
        self.set_aside = self._table("set_aside")

    def _table(self, name: str, **kinds: object) -> sa.Table:
        return sa.Table(
            f"{self.prefix}{name}",
            self.metadata,
            *_columns(_COLUMNS[name], kinds),
            *map(self._index, _INDEXES.get(name, ())),
        )

    def _index(self, index: _Index) -> sa.Index:
        columns = (
            sa.text(column) if column.startswith("(") else column
            for column in index.columns
        )
        where: dict[str, Any] = {}
        if index.rows is not None:
            where = dict.fromkeys(self._partial, sa.text(index.rows))
        return sa.Index(f"{self.prefix}{index.name}", *columns, **where)


def _columns(text: str, kinds: Mapping[str, Any]) -> Iterator[sa.Column[object]]:
    for word in text.split():
        name, _, default = word.rstrip("*!#").partition("=")
        kind = kinds.get(name, TYPES.get(name, Text))
        value = sa.text(default) if default else None
        is_needed = word.endswith(("*", "!"))
        numbered = [sa.Identity()] if "#" in word else []
        yield sa.Column(
            name,
            kind,
            *numbered,
            primary_key=word.endswith("*"),
            nullable=not is_needed,
            server_default=value,
        )


def of_plan(rows: Columns, instance: object) -> Condition:
    """Whether a row is this instance's plan row or one of its detached rows; an index finds
    either.
    """
    return sa.or_(rows.task_instance == instance, rows.plan_instance == instance)


def runs_on(rows: Columns) -> sa.ColumnElement[str | None]:
    """Return the tags that a job's row requires, as a JSON array."""
    found: sa.ColumnElement[str | None] = rows.plan["runs_on"].as_string()
    return found


def _is_of(kind: Kind, rows: Columns) -> Condition:
    """Compare with a literal: with a parameter, a generic plan cannot use a partial index."""
    return rows.kind == sa.literal_column(f"'{kind}'", Text)


is_task = partial(_is_of, Kind.TASK)
#: Whether a row is the own row of a job, or of an instance of it.
is_plan = partial(_is_of, Kind.PLAN)
#: Whether a row is detached: it has one slot, beside a plan row.
is_detached = partial(_is_of, Kind.DETACHED)
#: Return the tables of one prefix and schema for a kind of database, or for any.
tables = lru_cache(maxsize=512)(Tables)
