"""What a database role needs for its part, as SQL for PostgreSQL: named tables, the columns of an enqueuer, the audit.

Needs no database. The audit is append-only for all roles but the owner; a trigger writes the session's user into it.
"""

from __future__ import annotations

from sqlalchemy.dialects import postgresql

from slotwise.errors import ConfigurationError
from slotwise.store.schema.tables import Tables, tables

ROLES = ("worker", "enqueuer", "reader", "operator", "migrator")

#: What an application that only schedules writes of a row; all other columns keep their defaults.
WRITTEN = (
    "kind", "task_name", "task_instance", "task_data", "execution_time", "slot", "picked", "version",
    "created_version", "priority",
)  # fmt: skip
_ALL = "SELECT, INSERT, UPDATE, DELETE"
#: By role and table. Migrations own the tables and need no grant on them.
_RIGHTS = {
    "worker": {
        **dict.fromkeys(("tasks", "slots", "gaps", "attempts", "workers", "starts", "keys", "receipts"), _ALL),
        "controls": "SELECT, INSERT", "calendars": "SELECT, INSERT, UPDATE", "meta": "SELECT",
    },
    "enqueuer": {
        "tasks": f"SELECT ({{read}}), INSERT ({', '.join(WRITTEN)})", "meta": "SELECT",
    },
    "reader": dict.fromkeys(
        ("tasks", "slots", "gaps", "attempts", "workers", "controls", "calendars", "starts", "keys", "meta"), "SELECT"
    ),
    "operator": {
        **dict.fromkeys(("tasks", "slots", "gaps", "attempts", "meta", "calendars"), _ALL),
        "controls": "SELECT, INSERT", "workers": "SELECT", "starts": "SELECT", "keys": "SELECT", "receipts": _ALL,
    },
    "migrator": {},
}  # fmt: skip


def grants(role: str, to: str, *, prefix: str, schema: str | None) -> str:
    """Return the statements that give ``to`` what ``role`` needs, ready for a transaction."""
    if not to or not to.isprintable() or len(to.encode()) > 63:
        raise ConfigurationError(f"{to!r:.80} is no name of a database role; it has 1 to 63 bytes")
    place, prepare = tables(prefix, schema, "postgresql"), postgresql.dialect().identifier_preparer  # type: ignore[no-untyped-call]
    name, where = prepare.quote_identifier(to), prepare.quote(schema or "public")
    create = ", CREATE" * (role == "migrator")
    lines = [f"GRANT USAGE{create} ON SCHEMA {where} TO {name};"]
    read = ", ".join(column.name for column in place.tasks.c if column.name != "task_data")
    for table, rights in _RIGHTS[role].items():
        lines.append(f"GRANT {rights.format(read=read)} ON {prepare.format_table(getattr(place, table))} TO {name};")
    if "controls" in _RIGHTS[role] and role != "reader":
        sequence = f"{where}.{prepare.quote(f'{prefix}controls_id_seq')}"
        lines.append(f"GRANT USAGE ON SEQUENCE {sequence} TO {name};")
        lines += _signed(place, where, prefix, prepare.format_table(place.controls))
    if role == "enqueuer":
        tasks, policy = prepare.format_table(place.tasks), prepare.quote(f"{prefix}priority_of_enqueuers")
        lines += [
            "-- A flood at the highest priority, or at thousands of priorities, would keep other tasks waiting.",
            f"ALTER TABLE {tasks} DROP CONSTRAINT IF EXISTS {policy};",
            f"ALTER TABLE {tasks} ADD CONSTRAINT {policy}",
            "  CHECK (kind <> 'task' OR coalesce(priority, 50) BETWEEN 1 AND 100) NOT VALID;",
            "-- To confine this role to some tasks, complete this. All other roles then need a policy as well.",
            f"-- ALTER TABLE {tasks} ENABLE ROW LEVEL SECURITY;",
            f"-- CREATE POLICY {name} ON {tasks} TO {name} USING (task_name IN ('send-mail'))",
            "--   WITH CHECK (task_name IN ('send-mail') AND kind = 'task' AND NOT picked);",
            f"-- CREATE POLICY the_others ON {tasks} TO worker, reader, operator USING (true) WITH CHECK (true);",
        ]
    return "\n".join(lines) + "\n"


def _signed(place: Tables, where: str, prefix: str, controls: str) -> list[str]:
    """The audit's trigger. It runs as the role that inserts; ``session_user`` is who has logged in."""
    function = f'{where}."{prefix}sign_controls"'
    return [
        "-- Each row of the audit ends its author with the session's user; no row changes.",
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$",
        "BEGIN",
        "  IF TG_OP = 'INSERT' THEN",
        "    NEW.author := NEW.author || ' (database role ' || session_user || ')';",
        "    RETURN NEW;",
        "  END IF;",
        "  RAISE EXCEPTION 'the audit is append-only';",
        "END $$;",
        f"CREATE OR REPLACE TRIGGER {prefix}sign_controls BEFORE INSERT OR UPDATE OR DELETE ON {controls}",
        f"  FOR EACH ROW EXECUTE FUNCTION {function}();",
    ]
