"""What a database role needs for its part, as SQL for PostgreSQL: named tables, the columns of an
enqueuer, the audit.

Needs no database. The audit is append-only for all roles but the owner; a trigger writes the
session's user into it.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from slotwise.errors import ConfigurationError
from slotwise.model.records import FOREVER, RECURRING, to_micros
from slotwise.model.vocabulary import Kind
from slotwise.store.schema.tables import Tables, tables
from slotwise.store.slots.gates import BUCKET
from slotwise.store.slots.retention import PRUNED_UNTIL, TURN

#: What these statements leave in the schema beside rights, by name without the prefix.
FUNCTIONS = ("refuse_rows", "sign_controls")
ROLES = ("worker", "enqueuer", "reader", "operator", "migrator")

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
#: The server numbers the rows. A backfill's pace locks its row: that needs a right to update,
#: which a trigger denies.
_AUDIT = "SELECT, INSERT ({numbered}), UPDATE (id)"
#: What a worker notes: its turn to prune, what is pruned, the budget of ``recovery_rate``. Not the
#: pause of everything.
_NOTES = f"NEW.key IN ('{TURN}', '{PRUNED_UNTIL}', '{BUCKET}')"
#: What an enqueuer inserts: a task that waits, under no id that a slot of a job could have, with
#: numbers that are read.
_NEW_TASK = (
    f"NEW.kind = '{Kind.TASK}' AND NOT NEW.picked AND NEW.picked_by IS NULL AND "
    f"NEW.task_instance <> '{RECURRING}'\n"
    r"    AND NEW.task_instance !~ "
    rf"'^({RECURRING}@|trigger:)|@\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00$'"
    "\n    AND length(NEW.task_name) <= 250 AND length(NEW.task_instance) <= 250\n"
    "    AND coalesce(NEW.priority, 50) BETWEEN 1 AND 100 AND NEW.version BETWEEN 1 AND {last}\n"
    "    AND coalesce(NEW.created_version, 1) BETWEEN 1 AND {last}\n"
    "    AND NEW.execution_time BETWEEN '1900-01-01 00:00+00' AND '9000-01-01 00:00+00'\n"
    "    AND (NEW.slot IS NULL OR NEW.slot = coalesce(NEW.parked_due, NEW.execution_time))"
).replace("{last}", str(to_micros(FOREVER)))
#: By role and table. Migrations own the tables and need no grant on them.
_RIGHTS = {
    "worker": {
        **dict.fromkeys(
            ("tasks", "slots", "gaps", "attempts", "workers", "starts", "keys", "receipts"),
            _ALL,
        ),
        "controls": _AUDIT,
        "calendars": "SELECT, INSERT, UPDATE",
        "meta": "SELECT, INSERT, UPDATE (value)",
    },
    "enqueuer": {
        "tasks": f"SELECT ({{read}}), INSERT ({', '.join(WRITTEN)})",
        "meta": "SELECT",
    },
    "reader": dict.fromkeys(
        (
            "tasks",
            "slots",
            "gaps",
            "attempts",
            "workers",
            "controls",
            "calendars",
            "starts",
            "keys",
            "meta",
        ),
        "SELECT",
    ),
    "operator": {
        **dict.fromkeys(("tasks", "slots", "gaps", "attempts", "meta", "calendars"), _ALL),
        "controls": _AUDIT,
        "workers": "SELECT",
        "starts": "SELECT",
        "keys": "SELECT",
        "receipts": _ALL,
    },
    "migrator": {},
}


def grants(role: str, to: str, *, prefix: str, schema: str | None) -> str:
    """Return the statements that give ``to`` what ``role`` needs, ready for a transaction."""
    if not to or not to.isprintable() or len(to.encode()) > 63:
        raise ConfigurationError(
            f"{to!r:.80} is no name of a database role; it has 1 to 63 bytes"
        )
    place, prepare = (
        tables(prefix, schema, "postgresql"),
        postgresql.dialect().identifier_preparer,  # type: ignore[no-untyped-call]
    )
    name = prepare.quote_identifier(to)
    where = prepare.quote(schema or "public")
    create = ", CREATE" * (role == "migrator")
    # CREATE TRIGGER waits for readers of the table, and every worker would wait behind it.
    lines = [
        "SET LOCAL lock_timeout = '3s';",
        f"GRANT USAGE{create} ON SCHEMA {where} TO {name};",
    ]
    columns = {
        "read": ", ".join(
            column.name for column in place.tasks.c if column.name != "task_data"
        ),
        "numbered": ", ".join(
            column.name for column in place.controls.c if column.name != "id"
        ),
    }
    for table, rights in _RIGHTS[role].items():
        lines.append(
            f"GRANT {rights.format(**columns)} ON "
            f"{prepare.format_table(getattr(place, table))} TO {name};"
        )
    if role == "worker":
        lines += _refused(
            place.meta, _NOTES, where, prefix, on="INSERT OR UPDATE", lacking="DELETE"
        )
    if "controls" in _RIGHTS[role] and role != "reader":
        sequence = f"{where}.{prepare.quote(f'{prefix}controls_id_seq')}"
        lines.append(f"GRANT USAGE ON SEQUENCE {sequence} TO {name};")
        lines += _signed(place, where, prefix, prepare.format_table(place.controls))
    if role == "enqueuer":
        lines += _refused(
            place.tasks, _NEW_TASK, where, prefix, on="INSERT", lacking="UPDATE"
        )
        lines.append(
            "-- To confine this role to some tasks, see Tenants in the page on security."
        )
    return "\n".join(lines) + "\n"


def _refused(
    table: sa.Table, allowed: str, where: str, prefix: str, *, on: str, lacking: str
) -> list[str]:
    """A trigger: a role that lacks this right on the table writes only rows that are ``allowed``.

    So owners, and roles that may change all rows anyway, are not concerned, whatever groups a role
    is in. It comes before the unique index: a refused row blocks no other transaction.
    """
    function, name = (
        f'{where}."{prefix}refuse_rows"',
        postgresql.dialect().identifier_preparer.format_table(table),  # type: ignore[no-untyped-call]
    )
    return [
        f"-- A role without {lacking} on this table writes only such rows.",
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql "
        "SET search_path = pg_catalog AS $$",
        "BEGIN",
        "  IF NOT has_table_privilege(TG_RELID, TG_ARGV[0]) THEN",
        "    RAISE EXCEPTION 'role % may not write such a row into %', current_user, TG_TABLE_NAME",
        "      USING ERRCODE = 'check_violation';",
        "  END IF;",
        "  RETURN NEW;",
        "END $$;",
        f'CREATE OR REPLACE TRIGGER "{prefix}refuse_rows" BEFORE {on} ON {name}',
        f"  FOR EACH ROW WHEN (({allowed}) IS NOT TRUE) EXECUTE FUNCTION {function}('{lacking}');",
    ]


def _signed(place: Tables, where: str, prefix: str, controls: str) -> list[str]:
    """Return the audit's trigger. It runs as the inserting role; ``session_user`` is the role that
    logged in.
    """
    function = f'{where}."{prefix}sign_controls"'
    return [
        "-- Each row of the audit has the server's time, and ends its author with "
        "the session's user; no row changes.",
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql "
        "SET search_path = pg_catalog AS $$",
        "BEGIN",
        "  IF TG_OP = 'INSERT' THEN",
        "    NEW.author := NEW.author || ' (database role ' || session_user || ')';",
        "    NEW.at := statement_timestamp();",
        "    RETURN NEW;",
        "  END IF;",
        "  RAISE EXCEPTION 'the audit is append-only';",
        "END $$;",
        f"CREATE OR REPLACE TRIGGER {prefix}sign_controls BEFORE INSERT OR UPDATE "
        f"OR DELETE ON {controls}",
        f"  FOR EACH ROW EXECUTE FUNCTION {function}();",
    ]
