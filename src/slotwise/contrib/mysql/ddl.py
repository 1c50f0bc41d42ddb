"""Tables of MariaDB and MySQL, as the revisions make them.

Each table is one statement with its checks and indexes, which can be repeated: every DDL statement
commits by itself, so that an upgrade that was killed in between is completed by the next one.
What this makes of a column never changes, because released revisions call it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import sqlalchemy as sa

#: The instants that Python and every dialect can hold, and versions that can still rise.
FIRST, END = "1900-01-01 00:00:00", "9002-01-01 00:00:00"
LAST_VERSION = 2**62
#: The longest values of columns that are compared, in characters. A key has at most 3,072 bytes,
#: four for each. Other text is of any length, as is a reason outside a key: handlers give reasons.
LENGTHS = {
    "task_name": 100,
    "task_instance": 250,
    "plan_instance": 250,
    "limit_key": 250,
    "order_key": 250,
    "scope": 250,
    "name": 250,
    "key": 250,
    "receipt": 250,
    "handler": 100,
    "event": 100,
    "source": 200,
    "row_key": 450,
    "author": 200,
    "worker": 200,
    "picked_by": 200,
    "host": 100,
    "boot_id": 100,
    "command": 100,
    "kind": 50,
    "outcome": 50,
    "reason": 50,
    "origin": 50,
    "state": 50,
}
_TYPES = {
    sa.DateTime: "datetime(6)",
    sa.Interval: "bigint",
    sa.LargeBinary: "longblob",
    sa.Float: "double",
}
_VERSIONS = ("version", "created_version", "token")
_WAITS = "NOT picked AND state IS NULL AND"

#: Columns that the server computes. There are no indexes of some rows only, so that most are NULL
#: in all rows that their index is not for.
GENERATED = {
    "tasks": {
        "due_slot": (
            "datetime(6)",
            f"CASE WHEN {_WAITS} lost_count = 0 AND kind <> 'task' THEN execution_time END",
        ),
        "due_task": (
            "datetime(6)",
            f"CASE WHEN {_WAITS} lost_count = 0 AND kind = 'task' THEN execution_time END",
        ),
        "due_lost": (
            "datetime(6)",
            f"CASE WHEN {_WAITS} lost_count > 0 THEN execution_time END",
        ),
        "priority_rank": (
            "int",
            f"CASE WHEN {_WAITS} lost_count = 0 THEN -coalesce(priority, 50) END",
        ),
        "held": ("varchar(200)", "CASE WHEN picked THEN picked_by END"),
    }
}
#: The indexes of tables, where the revision has those of other databases.
_INDEXES = {
    "tasks": (
        ("due", "due_slot", "priority_rank"),
        ("queue", "task_name", "priority_rank", "due_task"),
        ("lost", "due_lost"),
        ("held", "held"),
        ("parked", "state", "task_name", "task_instance"),
        ("beside", "task_name", "plan_instance", "slot"),
        ("ordered", "task_name", "order_key", "created_version"),
        ("failing", "task_name", "consecutive_failures"),
    ),
    "slots": (("expires", "expires"), ("of_instances", "task_name", "slot")),
    "gaps": (("last", "task_name", "last_slot"),),
    "attempts": (("ended", "ended"),),
    "receipts": (("expires", "expires"),),
    "events": (
        ("waiting", "fanned_out", "id"),
        ("unhandled", "name", "handlers", "id"),
    ),
}


def create_table(
    dialect: sa.Dialect,
    prefix: str,
    name: str,
    columns: Sequence[sa.Column[object] | sa.CheckConstraint],
    *indexes: Sequence[str],
    schema: str | None = None,
) -> str:
    """Return the statement that makes a table unless it exists. Each of ``indexes`` is its name
    without that of the table, and its columns. Checks of other databases are left out.
    """
    given = [column for column in columns if isinstance(column, sa.Column)]
    table = f"{prefix}{name}"
    quote = dialect.identifier_preparer.quote_identifier
    lines = [_column(dialect, column) for column in given]
    for title, (kind, value) in GENERATED.get(name, {}).items():
        lines.append(f"{quote(title)} {kind} AS ({value}) STORED")
    key = [column.name for column in given if column.primary_key]
    lines.append(f"PRIMARY KEY ({', '.join(map(quote, key))})")
    for title, *parts in (*_INDEXES.get(name, ()), *indexes):
        listed = ", ".join(map(quote, parts))
        lines.append(f"KEY {quote(f'{table}_{title}')} ({listed})")
    full = f"{quote(schema)}.{quote(table)}" if schema else quote(table)
    body = ",\n    ".join(lines)
    return (
        f"CREATE TABLE IF NOT EXISTS {full} (\n    {body}\n"
        f") ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=utf8mb4 COLLATE={_collation(dialect)}"
    )


def _collation(dialect: sa.Dialect) -> str:
    """Return the collation that compares code points, and keeps blanks at the end apart."""
    is_mariadb = getattr(dialect, "is_mariadb", False)
    return "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"


def _column(dialect: sa.Dialect, column: sa.Column[object]) -> str:
    name = dialect.identifier_preparer.quote_identifier(column.name)
    words = [name, _type(dialect, column)]
    if not column.nullable or column.primary_key:
        words.append("NOT NULL")
    if column.primary_key and (column.identity or column.autoincrement is True):
        words.append("AUTO_INCREMENT")
    default = column.server_default
    if isinstance(default, sa.DefaultClause):
        words.append(f"DEFAULT {default.arg}")
    words.extend(_check(name, column))
    return " ".join(words)


def _type(dialect: sa.Dialect, column: sa.Column[object]) -> str:
    for general, special in _TYPES.items():
        if isinstance(column.type, general):
            return special
    if not isinstance(column.type, sa.Text):
        return column.type.compile(dialect=dialect)
    is_free = column.name == "reason" and not column.primary_key
    if column.name in LENGTHS and not is_free:
        return f"varchar({LENGTHS[column.name]})"
    return "longtext"


def _check(name: str, column: sa.Column[object]) -> Iterator[str]:
    """A value that Python cannot hold would keep a worker from reading any row of its batch. A
    check of NULL is passed.
    """
    if isinstance(column.type, sa.DateTime):
        first, end = f"TIMESTAMP'{FIRST}'", f"TIMESTAMP'{END}'"
        yield f"CHECK ({name} >= {first} AND {name} < {end})"
    if column.name in _VERSIONS and isinstance(column.type, sa.BigInteger):
        yield f"CHECK ({name} < {LAST_VERSION})"
