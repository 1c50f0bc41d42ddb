"""What a database role needs for its part, as SQL for PostgreSQL: named tables, the columns of an
enqueuer, the audit.

Needs no database. The audit is append-only for all roles but the owner; a trigger writes the
session's user into it.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from slotwise.errors import ConfigurationError
from slotwise.migrate.target import Target
from slotwise.model.records import FOREVER, RECURRING, to_micros
from slotwise.model.vocabulary import Kind, Outcome
from slotwise.store.operations.transaction import AUTHOR_LIMIT, NOTE_LIMIT, SIGNED_BY
from slotwise.store.schema.tables import INSTALLATION_KEY, PAUSED_KEY
from slotwise.store.slots.counts import COUNTED
from slotwise.store.slots.gates import BUCKET
from slotwise.store.slots.retention import PRUNED_UNTIL, TURN

#: What these statements leave in the schema beside rights, by name without the prefix.
FUNCTIONS = ("refuse_rows", "refuse_slots", "refuse_notes", "sign_controls")

#: The longest arguments of an entry of the audit, as JSON.
MOST_ARGUMENTS = 100_000
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
_LEDGER = ("slots", "gaps", "attempts")
_HISTORIES = ("deploys", "worker_history", "counts")
_ALARMS = ("incidents", "silences")
_SCOPES = ("instances", "scopes")
#: What was published, its handlers, and the rows that batches have set aside.
_EVENTS = ("events", "event_handlers", "set_aside")
#: The database numbers the events.
_NEW_EVENT = "INSERT (name, key, data, published)"
_LISTED = (
    *("workers", "controls", "calendars", "starts", "keys", "meta", "pauses"),
    "checkpoints",
    *_ALARMS,
    *_SCOPES,
    *_EVENTS,
)
#: By role and table. Migrations own the tables and need no grant on them. A lock of a row needs
#: the right to update one of its columns.
_RIGHTS = {
    "worker": {
        **dict.fromkeys(
            (
                *("tasks", *_LEDGER, *_HISTORIES, "workers", "starts", "keys"),
                *("receipts", "pauses", "checkpoints"),
                *_ALARMS,
                *_SCOPES,
                *_EVENTS,
            ),
            _ALL,
        ),
        "controls": _AUDIT,
        "calendars": "SELECT, INSERT, UPDATE",
        "meta": "SELECT, INSERT, UPDATE (value)",
        "alembic_version": "SELECT",
    },
    "enqueuer": {
        "tasks": f"SELECT ({{read}}), {_NEW_TASK}",
        "events": _NEW_EVENT,
        "meta": "SELECT",
        "pauses": "SELECT",
        "alembic_version": "SELECT",
    },
    "application": {
        "tasks": f"SELECT, {_NEW_TASK}, UPDATE (last_error)",
        "slots": (
            "SELECT, INSERT (task_name, task_instance, slot, outcome, origin, attempts, token, "
            "worker, started, finished), UPDATE (outcome, attempts, token, worker, finished)"
        ),
        "events": _NEW_EVENT,
        "set_aside": _ALL,
        "meta": "SELECT",
        "pauses": "SELECT",
        "alembic_version": "SELECT",
    },
    "reader": dict.fromkeys(
        ("tasks", *_LEDGER, *_HISTORIES, *_LISTED, "alembic_version"), "SELECT"
    ),
    "operator": {
        **dict.fromkeys(
            (
                *("tasks", *_LEDGER, "calendars", "receipts", "pauses", "checkpoints"),
                *_ALARMS,
                *_SCOPES,
            ),
            _ALL,
        ),
        "meta": "SELECT, INSERT, UPDATE (value), DELETE",
        "controls": _AUDIT,
        "keys": "SELECT, INSERT, UPDATE (running)",
        "events": "SELECT",
        "event_handlers": "SELECT, UPDATE, DELETE",
        "set_aside": "SELECT, UPDATE, DELETE",
        **dict.fromkeys(
            (*_HISTORIES, "workers", "starts", "alembic_version"), "SELECT"
        ),
    },
    "migrator": {},
}
ROLES = tuple(_RIGHTS)


#: Blanks but the space, and characters without a shape, as Python has them; classes of the
#: server depend on its locale.
_UNPRINTABLE = (
    r"\u0080-\u00a0\u00ad\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000"
    r"\ue000-\uf8ff\ufeff"
)


def _is_name(column: str) -> str:
    """Return the condition that commands can name what stands in a column."""
    value = f"NEW.{column}"
    return (
        rf"length({value}) <= 250 AND {value} ~ '\S' "
        f"AND {value} !~ '[[:cntrl:]{_UNPRINTABLE}]'"
    )


#: What a worker notes in ``meta``: its turn to prune, what is pruned and counted, the budget
#: of ``recovery_rate``; and ``slotwise watch``: which slots nothing explains. An operator may
#: delete rows, and so pauses everything, and changes the installation's id. Who may truncate
#: the table owns it.
_KEYS = f"'{TURN}', '{PRUNED_UNTIL}', '{COUNTED}', '{BUCKET}', 'reconciled'"
_NOTES = f"""\
  IF TG_OP = 'DELETE' THEN
    IF OLD.key = '{PAUSED_KEY}' THEN RETURN OLD; END IF;
  ELSIF TG_OP = 'INSERT' AND NEW.key IN ({_KEYS}) THEN
    RETURN NEW;
  ELSIF TG_OP = 'UPDATE' AND OLD.key IN ({_KEYS}) THEN
    RETURN NEW;
  ELSIF has_table_privilege(TG_RELID, 'DELETE') AND (
    TG_OP = 'INSERT' AND NEW.key = '{PAUSED_KEY}'
    OR TG_OP = 'UPDATE' AND OLD.key = '{INSTALLATION_KEY}') THEN
    RETURN NEW;
  END IF;
"""
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

_FUNCTION = """\
CREATE OR REPLACE FUNCTION {schema}."{prefix}NAME"() RETURNS trigger LANGUAGE plpgsql \
SET search_path = pg_catalog AS $$
BEGIN
BODY
END $$;
CREATE OR REPLACE TRIGGER "{prefix}NAME" BEFORE EVENT ON {table}
  FOR EACH ROW CONDITION EXECUTE FUNCTION {schema}."{prefix}NAME"();"""
_REFUSE = """\
  RAISE EXCEPTION 'role % may not write such a row into %', current_user, TG_TABLE_NAME
    USING ERRCODE = 'check_violation';"""
_LACKS = "NOT pg_catalog.has_table_privilege('{table}'::pg_catalog.regclass, 'RIGHT')"


def _trigger(name: str, event: str, body: str, condition: str = "") -> str:
    """Return a trigger with its function. It comes before the unique index: a refused row blocks
    no other transaction.
    """
    text = _FUNCTION.replace("NAME", name).replace("EVENT", event)
    return text.replace("CONDITION", condition and f"WHEN ({condition})").replace(
        "BODY", body
    )


def _refused(event: str, allowed: str, right: str) -> str:
    """Return the trigger that lets a role without a right on the table write some rows only."""
    lacks = _LACKS.replace("RIGHT", right)
    condition = f"({allowed}) IS NOT TRUE\n    AND {lacks}"
    return _trigger("refuse_rows", event, _REFUSE, condition)


#: Each row of the audit has the server's time, and ends its author with the session's user; no row
#: changes. The function runs as the inserting role; ``session_user`` is the role that logged in.
_LETTERS = SIGNED_BY.replace(" ", "").replace(
    "(", ""
)  # whatever else stands between them
_SIGNED = "GRANT USAGE ON SEQUENCE {sequence} TO {role};\n" + _trigger(
    "sign_controls",
    "INSERT OR UPDATE OR DELETE",
    f"""\
  IF TG_OP = 'INSERT' THEN
    IF regexp_replace(NEW.author, '[^a-z]+', '', 'gi') ~* '{_LETTERS}'
      OR length(NEW.author) > {AUTHOR_LIMIT} OR NEW.author ~ '[[:cntrl:]]'
      OR length(NEW.note) > {NOTE_LIMIT} OR length(NEW.arguments::text) > {MOST_ARGUMENTS}
      OR jsonb_typeof(NEW.arguments::jsonb) <> 'object' THEN
      RAISE EXCEPTION 'such an author, note or argument is not kept'
        USING ERRCODE = 'check_violation';
    END IF;
    NEW.author := NEW.author || '{SIGNED_BY} ' || session_user || ')';
    NEW.at := statement_timestamp();
    RETURN NEW;
  END IF;
  RAISE EXCEPTION 'the audit is append-only';""",
)
#: A role without DELETE on the ledger notes the success of what runs, and of nothing else.
_RUNNING = _trigger(
    "refuse_slots",
    "INSERT OR UPDATE",
    f"""\
  IF NEW.outcome = '{Outcome.SUCCEEDED}'
    AND NEW.finished BETWEEN coalesce(NEW.started, NEW.finished) AND statement_timestamp()
    AND (TG_OP = 'UPDATE' AND OLD.outcome = '{Outcome.RUNNING}' AND NEW.attempts = OLD.attempts
        AND NEW.token = OLD.token AND NEW.worker = OLD.worker
      OR EXISTS (
        SELECT FROM {{tasks}} AS t WHERE t.task_name = NEW.task_name
          AND t.task_instance = NEW.task_instance AND t.kind = '{Kind.TASK}' AND t.picked
          AND t.version = NEW.token AND t.picked_by = NEW.worker AND t.attempt = NEW.attempts
          AND t.slot = NEW.slot))
  THEN RETURN NEW; END IF;
{_REFUSE}""",
    _LACKS.replace("RIGHT", "DELETE"),
)
_WAITING = _refused("INSERT", _TASK, "UPDATE")
_NOTED = _trigger(
    "refuse_notes",
    "INSERT OR UPDATE OR DELETE",
    f"{_NOTES}{_REFUSE}",
    _LACKS.replace("RIGHT", "TRUNCATE"),
)
#: By role: tables and their triggers.
_TRIGGERS = {
    "worker": {
        "meta": _NOTED,
        "controls": _SIGNED,
    },
    "enqueuer": {"tasks": _WAITING},
    "application": {"tasks": _WAITING, "slots": _RUNNING},
    "operator": {"meta": _NOTED, "controls": _SIGNED},
}


def grants(role: str, to: str, *, prefix: str, schema: str | None) -> str:
    """Return the statements that give ``to`` what ``role`` needs, ready for a transaction."""
    if not to or not to.isprintable() or len(to.encode()) > 63:
        raise ConfigurationError(
            f"{to!r:.80} is no name of a database role; it has 1 to 63 bytes"
        )
    place = Target(prefix=prefix, schema=schema).tables
    quote = postgresql.dialect().identifier_preparer  # type: ignore[no-untyped-call]

    def full(table: str, where: str | None = schema) -> str:
        return str(quote.format_table(sa.table(f"{prefix}{table}", schema=where)))

    names = {
        "role": quote.quote_identifier(to),
        "schema": quote.quote(schema or "public"),
        "prefix": prefix,
        "sequence": full("controls_id_seq"),
        # for a function, which has a search_path of its own
        "tasks": full("tasks", schema or "public"),
        "read": _columns_but(place.tasks, "task_data"),
        "numbered": _columns_but(place.controls, "id"),
    }
    create = ", CREATE" * (role == "migrator")
    # CREATE TRIGGER waits for readers of the table, and every worker would wait behind it.
    lines = ["SET LOCAL lock_timeout = '3s';"]
    lines.append(
        _filled(f"GRANT USAGE{create} ON SCHEMA {{schema}} TO {{role}};", names)
    )
    for table, right in _RIGHTS[role].items():
        lines.append(_filled(f"GRANT {right} ON {full(table)} TO {{role}};", names))
    for table, text in _TRIGGERS.get(role, {}).items():
        lines.append(_filled(text, {**names, "table": full(table)}))
    if "tasks" in _TRIGGERS.get(role, {}):
        lines.append(
            "-- To confine this role to some tasks, see Tenants in the page on security."
        )
    return "\n".join(lines) + "\n"


def _filled(text: str, names: Mapping[str, str]) -> str:
    """Put names into a statement, whose other braces stay."""
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def _columns_but(table: sa.Table, left_out: str) -> str:
    return ", ".join(column.name for column in table.c if column.name != left_out)
