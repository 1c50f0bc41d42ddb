"""What a database role needs for its part, as SQL for PostgreSQL: named tables, the columns of an
enqueuer, the audit.

Needs no database. The audit is append-only for all roles but the owner; a trigger writes the
session's user into it.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from slotwise.errors import ConfigurationError
from slotwise.migrate.target import Target
from slotwise.model.records import FOREVER, RECURRING, to_micros
from slotwise.model.vocabulary import Kind, Outcome
from slotwise.store.operations.transaction import AUTHOR_LIMIT, NOTE_LIMIT, SIGNED_BY
from slotwise.store.slots.gates import BUCKET
from slotwise.store.slots.retention import PRUNED_UNTIL, TURN

#: What these statements leave in the schema beside rights, by name without the prefix.
FUNCTIONS = ("refuse_rows", "refuse_slots", "sign_controls")

#: What an application that only schedules writes of a row; all other columns keep their defaults.
WRITTEN = (
    "kind",
    "task_name",
    "task_instance",
    "task_data",
    "execution_time",
    "slot",
    "picked",
    "version",
    "created_version",
    "priority",
)
_ALL = "SELECT, INSERT, UPDATE, DELETE"
_NEW_TASK = f"INSERT ({', '.join(WRITTEN)})"
#: The server numbers the rows. A backfill's pace locks its row: that needs a right to update,
#: which a trigger denies.
_AUDIT = "SELECT, INSERT ({numbered}), UPDATE (id)"
_HISTORY = ("slots", "gaps", "attempts")
_LISTED = ("workers", "controls", "calendars", "starts", "keys", "meta")
#: By role and table. Migrations own the tables and need no grant on them. A lock of a row needs
#: the right to update one of its columns.
_RIGHTS = {
    "worker": {
        **dict.fromkeys(
            ("tasks", *_HISTORY, "workers", "starts", "keys", "receipts"), _ALL
        ),
        "controls": _AUDIT,
        "calendars": "SELECT, INSERT, UPDATE",
        "meta": "SELECT, INSERT, UPDATE (value)",
        "alembic_version": "SELECT",
    },
    "enqueuer": {
        "tasks": f"SELECT ({{read}}), {_NEW_TASK}",
        "meta": "SELECT",
        "alembic_version": "SELECT",
    },
    "application": {
        "tasks": f"SELECT, {_NEW_TASK}, UPDATE (last_error)",
        "slots": (
            "SELECT, INSERT (task_name, task_instance, slot, outcome, origin, attempts, token, "
            "worker, started, finished), UPDATE (outcome, attempts, token, worker, finished)"
        ),
        "meta": "SELECT",
        "alembic_version": "SELECT",
    },
    "reader": dict.fromkeys(("tasks", *_HISTORY, *_LISTED, "alembic_version"), "SELECT"),
    "operator": {
        **dict.fromkeys(("tasks", *_HISTORY, "meta", "calendars", "receipts"), _ALL),
        "controls": _AUDIT,
        "keys": "SELECT, INSERT, UPDATE (running)",
        **dict.fromkeys(("workers", "starts", "alembic_version"), "SELECT"),
    },
    "migrator": {},
}
ROLES = tuple(_RIGHTS)


def _is_name(column: str) -> str:
    """Return the condition that commands can name what stands in a column."""
    value = f"NEW.{column}"
    return rf"length({value}) <= 250 AND {value} ~ '\S' AND {value} !~ '[[:cntrl:]]'"


#: What a worker notes: its turn to prune, what is pruned, the budget of ``recovery_rate``. Not the
#: pause of everything.
_NOTE = f"NEW.key IN ('{TURN}', '{PRUNED_UNTIL}', '{BUCKET}')"
#: What an application inserts: a task that waits, under a name and an id that commands can name
#: and that no slot of a job could have, with numbers that are read.
_TASK = (
    f"NEW.kind = '{Kind.TASK}' AND NOT NEW.picked AND NEW.picked_by IS NULL\n"
    f"    AND NEW.task_instance <> '{RECURRING}' AND NEW.task_instance !~ '^({RECURRING}@|trigger:)"
    r"|@\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00$'"
    f"\n    AND {_is_name('task_name')}\n    AND {_is_name('task_instance')}\n"
    "    AND coalesce(NEW.priority, 50) BETWEEN 1 AND 100\n"
    f"    AND NEW.version BETWEEN 1 AND {to_micros(FOREVER)}\n"
    f"    AND coalesce(NEW.created_version, 1) BETWEEN 1 AND {to_micros(FOREVER)}\n"
    "    AND NEW.execution_time BETWEEN '1900-01-01 00:00+00' AND '9000-01-01 00:00+00'\n"
    "    AND (NEW.slot IS NULL OR NEW.slot = coalesce(NEW.parked_due, NEW.execution_time))"
)

_REFUSED = """\
-- A role without {lacking} on this table writes only such rows. The trigger comes before the unique
-- index: a refused row blocks no other transaction.
CREATE OR REPLACE FUNCTION {schema}."{prefix}refuse_rows"() RETURNS trigger LANGUAGE plpgsql \
SET search_path = pg_catalog AS $$
BEGIN
  RAISE EXCEPTION 'role % may not write such a row into %', current_user, TG_TABLE_NAME
    USING ERRCODE = 'check_violation';
END $$;
CREATE OR REPLACE TRIGGER "{prefix}refuse_rows" BEFORE {event} ON {table}
  FOR EACH ROW WHEN (({allowed}) IS NOT TRUE
    AND NOT pg_catalog.has_table_privilege('{table}'::pg_catalog.regclass, '{lacking}'))
  EXECUTE FUNCTION {schema}."{prefix}refuse_rows"();"""

_SLOTS_REFUSED = """\
-- A role without DELETE on the ledger notes the success of what runs, and of nothing else.
CREATE OR REPLACE FUNCTION {schema}."{prefix}refuse_slots"() RETURNS trigger LANGUAGE plpgsql \
SET search_path = pg_catalog AS $$
BEGIN
  IF TG_OP = 'UPDATE' AND OLD.outcome = '{running}' OR EXISTS (
    SELECT FROM {tasks} AS t WHERE t.task_name = NEW.task_name
      AND t.task_instance = NEW.task_instance AND t.kind = '{task}' AND t.picked)
  THEN RETURN NEW; END IF;
  RAISE EXCEPTION 'role % may not write such a row into %', current_user, TG_TABLE_NAME
    USING ERRCODE = 'check_violation';
END $$;
CREATE OR REPLACE TRIGGER "{prefix}refuse_slots" BEFORE INSERT OR UPDATE ON {table}
  FOR EACH ROW WHEN (NOT pg_catalog.has_table_privilege('{table}'::pg_catalog.regclass, 'DELETE'))
  EXECUTE FUNCTION {schema}."{prefix}refuse_slots"();"""

#: It runs as the inserting role; ``session_user`` is the role that logged in.
_SIGNED = """\
GRANT USAGE ON SEQUENCE {sequence} TO {role};
-- Each row of the audit has the server's time, and ends its author with the session's user; no
-- row changes.
CREATE OR REPLACE FUNCTION {schema}."{prefix}sign_controls"() RETURNS trigger LANGUAGE plpgsql \
SET search_path = pg_catalog AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    IF strpos(NEW.author, '{signed_by}') > 0 OR length(NEW.author) > {author}
      OR length(NEW.note) > {note} OR jsonb_typeof(NEW.arguments::jsonb) <> 'object' THEN
      RAISE EXCEPTION 'such an author, note or argument is not kept'
        USING ERRCODE = 'check_violation';
    END IF;
    NEW.author := NEW.author || '{signed_by} ' || session_user || ')';
    NEW.at := statement_timestamp();
    RETURN NEW;
  END IF;
  RAISE EXCEPTION 'the audit is append-only';
END $$;
CREATE OR REPLACE TRIGGER {prefix}sign_controls BEFORE INSERT OR UPDATE OR DELETE ON {table}
  FOR EACH ROW EXECUTE FUNCTION {schema}."{prefix}sign_controls"();"""


def grants(role: str, to: str, *, prefix: str, schema: str | None) -> str:
    """Return the statements that give ``to`` what ``role`` needs, ready for a transaction."""
    if not to or not to.isprintable() or len(to.encode()) > 63:
        raise ConfigurationError(
            f"{to!r:.80} is no name of a database role; it has 1 to 63 bytes"
        )
    place = Target(prefix=prefix, schema=schema).tables
    quote = postgresql.dialect().identifier_preparer  # type: ignore[no-untyped-call]
    rights = _RIGHTS[role]
    columns = {
        "read": _columns_but(place.tasks, "task_data"),
        "numbered": _columns_but(place.controls, "id"),
    }
    names = {
        "role": quote.quote_identifier(to),
        "schema": quote.quote(schema or "public"),
        "prefix": prefix,
    }

    def full(table: str) -> str:
        return str(quote.format_table(sa.table(f"{prefix}{table}", schema=schema)))

    def trigger(template: str, table: str, **parts: object) -> str:
        return template.format(table=full(table), **names, **parts)

    create = ", CREATE" * (role == "migrator")
    # CREATE TRIGGER waits for readers of the table, and every worker would wait behind it.
    lines = [
        "SET LOCAL lock_timeout = '3s';",
        "GRANT USAGE{create} ON SCHEMA {schema} TO {role};".format(create=create, **names),
    ]
    for table, right in rights.items():
        lines.append(
            f"GRANT {right.format(**columns)} ON {full(table)} TO {names['role']};"
        )
    if role == "worker":
        lines.append(
            trigger(
                _REFUSED,
                "meta",
                allowed=_NOTE,
                event="INSERT OR UPDATE",
                lacking="DELETE",
            )
        )
    if rights.get("controls") == _AUDIT:
        lines.append(
            trigger(
                _SIGNED,
                "controls",
                sequence=full("controls_id_seq"),
                signed_by=SIGNED_BY,
                author=AUTHOR_LIMIT,
                note=NOTE_LIMIT,
            )
        )
    if role in ("enqueuer", "application"):
        lines.append(
            trigger(_REFUSED, "tasks", allowed=_TASK, event="INSERT", lacking="UPDATE")
        )
        lines.append(
            "-- To confine this role to some tasks, see Tenants in the page on security."
        )
    if role == "application":
        lines.append(
            trigger(
                _SLOTS_REFUSED,
                "slots",
                # the function has a search_path of its own
                tasks=full("tasks") if schema else f"public.{full('tasks')}",
                running=Outcome.RUNNING,
                task=Kind.TASK,
            )
        )
    return "\n".join(lines) + "\n"


def _columns_but(table: sa.Table, left_out: str) -> str:
    return ", ".join(column.name for column in table.c if column.name != left_out)
