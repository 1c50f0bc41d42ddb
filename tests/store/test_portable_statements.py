"""Each statement of ``Locking`` is compiled for MySQL, and has nothing that those lacks."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import CompileError
from tests.databases import Databases
from tests.ledger_author import sender
from tests.store.bench import Bench
from tests.store.conftest import opened, plan
from tests.store.statements import VERBS, Stage

from slotwise.spi import register_dialect
from slotwise.store.dialects.locking_postgresql import LockingPostgreSQL

#: What one of these databases does not know, or does in another way.
REFUSED = {
    name: re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for name, pattern in {
        "LATERAL": r"\blateral\b",
        "FILTER": r"\bfilter\s*\(",
        "DISTINCT ON": r"\bdistinct\s+on\b",
        "IS DISTINCT FROM": r"\bis\s+(not\s+)?distinct\s+from\b",
        "NULLS FIRST": r"\bnulls\s+(first|last)\b",
        "WITH before a write": r"^\s*with\b.*\b(insert\s+into|update|delete\s+from)\b",
        "LIMIT inside IN": r"\bin\s*\(\s*select\b[^()]*\blimit\b",
        "least or greatest": r"\b(least|greatest)\s*\(",
        "FOR SHARE": r"\bfor\s+(key\s+)?share\b",
        "FOR UPDATE OF": r"\bfor\s+update\s+of\b",
        "RETURNING": r"\breturning\b",
        "ON CONFLICT": r"\bon\s+conflict\b|\bon\s+duplicate\b",
        "ctid": r"\bctid\b",
        "an advisory lock": r"\badvisory\b",
        "NOTIFY": r"\bnotify\b|\bpg_notify\b",
        "xact_status": r"\bxact_status\b|\bxact_id\b",
    }.items()
}
#: What other rooms of the store send, and must send in another form before MariaDB comes.
NOT_YET = {
    ("store/slots/ledger.py", "LIMIT inside IN"),
}
BENCH = "tests.store.test_portable_statements:WithValues"
POSTGRESQL = "slotwise.store.dialects.postgresql.dialect:PostgreSQL"


class WithValues(LockingPostgreSQL):
    """Names and values of a batch in the forms that SQLAlchemy can compile for each database."""

    def among(
        self, column: sa.ColumnElement[str], names: Collection[str]
    ) -> sa.ColumnElement[bool]:
        return column.in_(names)

    def values_of(
        self, rows: Sequence[Mapping[str, object]], types: Mapping[str, Any]
    ) -> sa.FromClause:
        columns = [sa.column(name, kind) for name, kind in types.items()]
        given = sa.values(*columns, name="given")
        return given.data(
            [tuple(_typed(row[name], kind) for name, kind in types.items()) for row in rows]
        )


def _typed(value: object, kind: Any) -> Any:
    """In a column of nulls alone, a null has no type."""
    return sa.cast(sa.null(), kind) if value is None else value


@pytest.fixture
def heard(databases: Databases) -> Iterator[tuple[Bench, list[tuple[str, Any]]]]:
    """A bench on that dialect, and what it sends: the file of the sender, and the statement."""
    statements: list[tuple[str, Any]] = []

    def listen(_connection: Any, statement: Any, *_rest: Any) -> None:
        statements.append((sender(sys._getframe(1)) or "", statement))

    with databases.provisioned("planned", plan) as url:
        from tests.kit.dialect import DIALECT, LOCKING

        register_dialect("postgresql", BENCH)
        try:
            with opened(url) as database:
                bench = Bench(database)
                sa.event.listen(sa.Engine, "before_execute", listen)
                yield bench, statements
        finally:
            sa.event.remove(sa.Engine, "before_execute", listen)
            register_dialect("postgresql", LOCKING if DIALECT else POSTGRESQL)


@pytest.mark.parametrize("verb", VERBS)
def test_each_statement_compiles_for_mysql(
    heard: tuple[Bench, list[tuple[str, Any]]], verb: str
) -> None:
    bench, statements = heard
    stage = Stage(bench)
    play = VERBS[verb](stage)
    play()
    assert statements
    found = set()
    for file, statement in statements:
        for problem in problems(statement):
            found.add((file, problem))
    assert found - NOT_YET == set()


def problems(statement: Any) -> Iterator[str]:
    if isinstance(statement, str):  # what a database calls in its own way
        return
    try:
        text = str(statement.compile(dialect=mysql.dialect()))  # type: ignore[no-untyped-call]
    except CompileError as error:
        yield f"does not compile: {error}"
        return
    for name, pattern in REFUSED.items():
        if pattern.search(text):
            yield f"{name}"


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("SELECT 1 FOR SHARE", "FOR SHARE"),
        ("WITH a AS (SELECT 1) UPDATE t SET b = 1", "WITH before a write"),
        ("DELETE FROM t WHERE a IN (SELECT a FROM t LIMIT 5)", "LIMIT inside IN"),
        ("SELECT least(a, b) FROM t", "least or greatest"),
        ("SELECT a FROM t ORDER BY a NULLS FIRST", "NULLS FIRST"),
        ("SELECT DISTINCT ON (a) a FROM t", "DISTINCT ON"),
        ("SELECT count(*) FILTER (WHERE a) FROM t", "FILTER"),
    ],
)
def test_the_lint_sees_what_it_refuses(statement: str, problem: str) -> None:
    assert problem in set(problems(sa.text(statement)))
