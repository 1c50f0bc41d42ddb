"""Bulk writes in the order of the key: one statement for all rows of a batch.

Race: two workers that update the same rows in different orders wait for each other, and the
database ends one of them. In the order of the key, the second one waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from sqlalchemy import orm

from slotwise import ConfigurationError

if TYPE_CHECKING:
    from typing import TypeAlias

    #: A mapped class, or a table of SQLAlchemy.
    Target: TypeAlias = type[object] | sa.Table
    Rows: TypeAlias = Sequence[Mapping[str, object]]

_KEY: Final = "slotwise_key_"


def insert_all(
    connection: sa.Connection | orm.Session, target: Target, rows: Rows
) -> None:
    """Insert rows by one statement for many, those that name their key in its order.

    ``rows`` have the values of columns by name. Raises ConfigurationError for what is no table
    and no mapped class, and what the database raises.
    """
    names = [column.name for column in _key_of(_table_of(target))]
    has_keys = all(name in row for row in rows for name in names)
    ordered = _in_order(rows, names) if has_keys else [*rows]
    if ordered:
        connection.execute(sa.insert(_table_of(target)), ordered)


def update_all(
    connection: sa.Connection | orm.Session, target: Target, rows: Rows
) -> int:
    """Update rows by their primary key, in its order; return how many there were.

    Each of ``rows`` has the values of the key and the new values of the same columns, by name.
    Raises ConfigurationError for a row without its key or with other columns than the first, and
    what the database raises.
    """
    table = _table_of(target)
    key = _key_of(table)
    names = [column.name for column in key]
    for row in rows:
        lacking = {*names, *rows[0]} ^ {*row}
        if lacking:
            raise ConfigurationError(
                f"update_all({table.name}): all rows need the key and the same columns, but "
                f"{dict(row)!r:.80} differs in {', '.join(sorted(lacking))}"
            )
    if not rows:
        return 0
    changed: dict[str, object] = {
        name: sa.bindparam(name) for name in rows[0] if name not in names
    }
    wanted = [column == sa.bindparam(_KEY + column.name) for column in key]
    values = [
        {(_KEY + name if name in names else name): row[name] for name in row}
        for row in _in_order(rows, names)
    ]
    statement = table.update().where(*wanted).values(changed)
    own = connection
    if isinstance(own, orm.Session):
        own.flush()
        own = own.connection()
    return own.execute(statement, values).rowcount


def _table_of(target: Target) -> sa.Table:
    if isinstance(target, sa.Table):
        return target
    mapper = sa.inspect(target, raiseerr=False)
    found = mapper.local_table if isinstance(mapper, orm.Mapper) else None
    if isinstance(found, sa.Table):
        return found
    raise ConfigurationError(
        f"{target!r:.60} is no table; pass a mapped class or a Table of SQLAlchemy"
    )


def _key_of(table: sa.Table) -> Sequence[sa.Column[object]]:
    if not table.primary_key.columns:
        raise ConfigurationError(
            f"the table {table.name} has no primary key to order rows by"
        )
    return [*table.primary_key.columns]


def _in_order(rows: Rows, names: Sequence[str]) -> list[dict[str, object]]:
    def key(row: Mapping[str, object]) -> tuple[object, ...]:
        return tuple([row[name] for name in names])

    try:
        ordered = sorted(rows, key=key)
    except TypeError as error:
        raise ConfigurationError(
            f"the keys of these rows cannot be compared: {error}"
        ) from None
    return [dict(row) for row in ordered]
