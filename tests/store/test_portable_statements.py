"""Each statement of ``Locking`` is compiled for MySQL, and has nothing that it lacks."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import CompileError
from sqlalchemy.sql import visitors
from tests.databases import Databases
from tests.kit.ports import LockingPostgreSQL, Transaction
from tests.kit.records import Gap
from tests.ledger_author import sender
from tests.store.bench import LEASE, Bench
from tests.store.conftest import opened, plan
from tests.store.statements import FAR_AWAY, LONG_AGO, VERBS, Stage

from slotwise.spi import ClaimRequest, Dialect, Key, Kind, Row, register_dialect
from slotwise.store.dialects.quarantine import quarantine
from slotwise.store.slots.counts import Counts, Ended

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
            [
                tuple(_typed(row[name], kind) for name, kind in types.items())
                for row in rows
            ]
        )


def _typed(value: object, kind: Any) -> Any:
    """In a column of nulls alone, a null has no type."""
    return sa.cast(sa.null(), kind) if value is None else value


def _others(stage: Stage) -> Callable[[], Any]:
    """Verbs that no play of the golden files needs."""
    dialect = stage.store.dialect
    tables = dialect.tables
    rows = [
        {"task_name": name, "kind": "limit", "key": "", "running": 1} for name in "ab"
    ]
    key = Key("plain", "recurring")
    plan = Row(
        **key._asdict(),
        execution_time=LONG_AGO,
        version=2,
        kind=Kind.PLAN,
        slot=LONG_AGO,
    )
    gap = Gap(first=LONG_AGO, last=FAR_AWAY, count=2, reason="catch_up")
    single = Gap(
        first=LONG_AGO, last=LONG_AGO, count=1, reason="catch_up", after=LONG_AGO
    )

    def play() -> None:
        with stage.store.transaction() as connection:
            now = dialect.now(connection)
            receipt = dialect.transaction_id(connection)
            dialect.latch(connection, "plain", shared=False)
            assert dialect.alone(connection, "plain")
            assert dialect.insert_missing(connection, tables.keys, rows) == ["a", "b"]
            dialect.replace_all(connection, tables.keys, rows)
            dialect.lock(connection, [key], wait=False)
            dialect.due_names(connection, 5, None)
            dialect.due_keys(connection, ClaimRequest("host:1:a", ["plain"], 5, LEASE))
            dialect.newest_decided(connection, [key], ())
            dialect.gaps(connection, [(plan, gap), (plan, single)], now)
            quarantine(Transaction(connection, dialect, now), key, "broken")
            found = sa.select(tables.keys.c.task_name).limit(1)
            mine = dialect.locked(connection, found)
            connection.execute(tables.keys.delete().where(mine))
            dialect.delete_receipts(connection)
        counts = Counts(stage.store)
        counts.add({Ended("plain", LONG_AGO, "slot", "succeeded", ""): 1})
        while counts.recount_closed():
            pass
        counts.add({Ended("plain", LONG_AGO, "slot", "succeeded", ""): 1})
        assert receipt is not None
        with stage.store.database.main.connect() as connection:
            assert dialect.committed(connection, receipt)

    return play


#: Together they call every verb of the port.
PLAYS = {**VERBS, "others": _others}


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


@pytest.mark.parametrize("verb", PLAYS)
def test_each_statement_compiles_for_mysql(
    heard: tuple[Bench, list[tuple[str, Any]]], verb: str
) -> None:
    bench, statements = heard
    stage = Stage(bench)
    play = PLAYS[verb](stage)
    play()
    assert statements
    found = set()
    for file, statement in statements:
        for problem in problems(statement):
            found.add((file, problem))
    assert found == set()


def problems(statement: Any) -> Iterator[str]:
    if isinstance(statement, str):  # what a database calls in its own way
        return
    try:
        text = str(statement.compile(dialect=mysql.dialect()))  # type: ignore[no-untyped-call]
    except CompileError as error:
        yield f"does not compile: {error}"
        return
    yield from (name for name, pattern in REFUSED.items() if pattern.search(text))
    if isinstance(statement, sa.Update):
        yield from misread(statement)
    if any(
        re.search(r"\blimit\b", found, re.IGNORECASE) for found in inner_selects(text)
    ):
        yield "LIMIT inside IN"


def misread(update: sa.Update) -> Iterator[str]:
    """MySQL assigns from left to right: which assignments read a column that has got its new value
    before.
    """
    table = update.table
    assert isinstance(table, sa.Table)
    named = dict(update._values or {})
    given = {table.c[getattr(key, "key", key)]: value for key, value in named.items()}
    if not update._maintain_values_ordering:
        given = {column: given[column] for column in table.c if column in given}
    assigned: set[Any] = set()
    for column, value in given.items():
        for part in visitors.iterate(value):
            if part in assigned and part is not column:
                yield f"{column} reads the new value of {part}"
        assigned.add(column)


def inner_selects(text: str) -> Iterator[str]:
    """What stands in the parentheses of each IN (SELECT …), without its own parentheses."""
    for found in re.finditer(r"\bin\s*\((?=\s*select\b)", text, re.IGNORECASE):
        depth, inner = 1, []
        for character in text[found.end() :]:
            depth += {"(": 1, ")": -1}.get(character, 0)
            if depth == 0:
                break
            if depth == 1:
                inner.append(character)
        yield "".join(inner)


@pytest.mark.extended
def test_every_verb_is_played(databases: Databases) -> None:
    """So no statement of ``Locking`` escapes the check."""
    called = set()

    def note(frame: Any, event: str, _argument: Any) -> None:
        rooms = "/store/dialects/", "/kit/startup/"
        if event == "call" and any(room in frame.f_code.co_filename for room in rooms):
            called.add(frame.f_code.co_name)

    register_dialect("postgresql", BENCH)
    try:
        for make in PLAYS.values():
            with (
                databases.provisioned("planned", plan) as url,
                opened(url) as database,
            ):
                play = make(Stage(Bench(database)))
                sys.setprofile(note)
                try:
                    play()
                finally:
                    sys.setprofile(None)
    finally:
        from tests.kit.dialect import DIALECT, LOCKING

        register_dialect("postgresql", LOCKING if DIALECT else POSTGRESQL)
    verbs = {name for name, verb in vars(Dialect).items() if inspect.isfunction(verb)}
    # The first are another database's in each dialect; the last is never called on this one.
    verbs -= {"hurry", "merged", "among", "advance"}
    verbs = {name for name in verbs if not name.startswith("_")}
    assert verbs - called == set()


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("SELECT 1 FOR SHARE", "FOR SHARE"),
        ("WITH a AS (SELECT 1) UPDATE t SET b = 1", "WITH before a write"),
        ("DELETE FROM t WHERE a IN (SELECT a FROM t LIMIT 5)", "LIMIT inside IN"),
        ("DELETE FROM t WHERE a IN (SELECT f(a) FROM t LIMIT 5)", "LIMIT inside IN"),
        ("SELECT a FROM t, LATERAL (SELECT 1) AS b", "LATERAL"),
        ("SELECT a FROM t WHERE a IS DISTINCT FROM b", "IS DISTINCT FROM"),
        ("DELETE FROM t RETURNING a", "RETURNING"),
        ("INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING", "ON CONFLICT"),
        ("SELECT least(a, b) FROM t", "least or greatest"),
        ("SELECT a FROM t ORDER BY a NULLS FIRST", "NULLS FIRST"),
        ("SELECT DISTINCT ON (a) a FROM t", "DISTINCT ON"),
        ("SELECT count(*) FILTER (WHERE a) FROM t", "FILTER"),
    ],
)
def test_the_lint_sees_what_it_refuses(statement: str, problem: str) -> None:
    assert problem in set(problems(sa.text(statement)))
