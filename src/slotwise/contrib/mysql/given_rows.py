"""Values of a batch as a table, and joins that begin with it: each row is found by its key, in
the order of the batch.

The optimizer would else read, and lock, a whole table that it takes for a small one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.visitors import Visitable

from slotwise.contrib.mysql.ddl import LENGTHS

if TYPE_CHECKING:
    from sqlalchemy.types import TypeEngine

_MYSQL = mysql.dialect()


def given_rows(
    rows: Sequence[Mapping[str, object]], types: Mapping[str, TypeEngine[object]]
) -> sa.FromClause:
    """Return a table of these rows, with a column of each of these names and types. It is one
    parameter.
    """
    sent = [[_sent(row[name], kind) for name, kind in types.items()] for row in rows]
    columns = ", ".join(
        f"`{name}` {_column_type(name, kind, sent, place)} PATH '$[{place}]'"
        for place, (name, kind) in enumerate(types.items())
    )
    text = (
        f"SELECT * FROM JSON_TABLE(:given_rows, '$[*]' COLUMNS ({columns})) AS given"
    )
    query = sa.text(text).bindparams(
        sa.bindparam("given_rows", json.dumps(sent), sa.Text, unique=True)
    )
    return query.columns(**dict(types)).subquery("given_rows")


def _column_type(
    name: str, kind: TypeEngine[object], sent: list[list[object]], place: int
) -> str:
    """A text is compared with a column in that column's collation, as it is the binary one. A
    temporary table with a text of any length would be a file. Without its character set it would
    have the database's, which turns characters that it lacks into question marks.
    """
    here = kind.dialect_impl(_MYSQL)
    if isinstance(here, sa.String | sa.JSON):
        length = LENGTHS.get(name.removeprefix("its_").removeprefix("new_"))
        longest = max(len(str(row[place])) for row in sent)
        is_short = length is not None and longest <= length
        size = f"VARCHAR({length})" if is_short else "LONGTEXT"
        return f"{size} CHARSET utf8mb4"
    text: str = _MYSQL.type_compiler_instance.process(here)
    return "TINYINT" if isinstance(here, sa.Boolean) else text


def _sent(value: object, kind: TypeEngine[object]) -> object:
    """Return the value as JSON has it in a column of this type."""
    store = kind.dialect_impl(_MYSQL).bind_processor(_MYSQL)
    value = value if store is None else store(value)
    if isinstance(value, datetime):
        return value.isoformat(" ", "microseconds")
    return int(value) if isinstance(value, bool) else value


class ByKeyJoin(sa.sql.selectable.Join):
    """A join of given rows with a table whose primary key they have; the left side is read
    first.
    """

    inherit_cache = True


class ByKeyUpdate(sa.Update):
    """An update of rows that have the keys of given rows, in their order."""

    inherit_cache = True


@compiles(ByKeyUpdate)
def _update_by_key(update: ByKeyUpdate, compiler: SQLCompiler, **how: Any) -> str:
    text = compiler.visit_update(update, **how)
    assert isinstance(update.table, sa.Table)
    table = compiler.preparer.format_table(update.table)
    tables, assign, rest = text.partition(" SET ")
    given = tables.removeprefix(f"UPDATE {table}, ")
    assert assign, text
    assert given != tables, text
    both = f"{given} STRAIGHT_JOIN {table} FORCE INDEX (PRIMARY)"
    return f"UPDATE {both}{assign}{rest}"


@compiles(ByKeyJoin)
def _join_by_key(join: ByKeyJoin, compiler: SQLCompiler, **how: object) -> str:
    assert join.onclause is not None
    parts: list[Visitable] = [join.left, join.right, join.onclause]
    left, right, condition = (compiler.process(part, **how) for part in parts)
    return f"{left} STRAIGHT_JOIN {right} FORCE INDEX (PRIMARY) ON {condition}"
