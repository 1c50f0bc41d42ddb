"""The dialect of MariaDB: the conformance suite for authors, each easily forgotten verb in its
place, and what its claims read and lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from tests.store.conftest import opened
from tests.store.test_dialect_conformance import CHECKS, FORGOTTEN, passes

from slotwise.contrib.mysql.dialect import MySQL
from slotwise.spi import Claim, ClaimRequest, DatabaseClock, Kind, Tables
from slotwise.testing.dialects import DialectConformance

LEASE = timedelta(minutes=1)


@pytest.fixture
def engine(mysql_url: str) -> Iterator[sa.Engine]:
    with opened(mysql_url) as database:
        yield database.main


def conformance(kind: type[MySQL], engine: sa.Engine) -> DialectConformance:
    found = DialectConformance()
    found.engine = engine
    found.dialect = kind(Tables(database="mysql"), DatabaseClock())
    return found


def test_the_dialect_conforms(engine: sa.Engine) -> None:
    """Each check uses names of its own, so that one database is enough for all."""
    for check in CHECKS:
        getattr(conformance(MySQL, engine), check)()


@pytest.mark.parametrize("verb", FORGOTTEN)
def test_a_verb_that_locks_nothing_dies(verb: str, engine: sa.Engine) -> None:
    forgotten = FORGOTTEN[verb](getattr(MySQL, verb))
    mutant: type[MySQL] = type("Mutant", (MySQL,), {verb: forgotten})
    found = conformance(mutant, engine)
    assert not all(passes(found, check) for check in CHECKS)


# -- what a claim reads, and locks ----------------------------------------------------------------

#: Rows that are due.
MANY = 2000


@pytest.fixture
def due(engine: sa.Engine) -> sa.Engine:
    """A database with due tasks of two priorities, and due slots."""
    rows = f"""INSERT INTO scheduled_tasks
        (task_name, task_instance, execution_time, slot, picked, version, kind, priority)
        SELECT {{name}}, {{id}}, utc_timestamp(6) - INTERVAL seq SECOND, utc_timestamp(6), 0, 2,
               '{{kind}}', 40 + 10 * (seq MOD 2) FROM seq_1_to_{MANY}"""
    task = {"name": "'mail'", "id": "concat('i', seq)", "kind": Kind.TASK}
    slot = {"name": "concat('job', seq)", "id": "'recurring'", "kind": Kind.PLAN}
    with engine.begin() as connection:
        for values in (task, slot):
            connection.exec_driver_sql(rows.format(**values))
    return engine


def request(*names: str, limit: int) -> ClaimRequest:
    return ClaimRequest(holder="a:1:a", names=names, limit=limit, lease=LEASE, lost=0)


Claiming = Callable[[MySQL, sa.Connection, int], list[Any]]


def tasks(dialect: MySQL, connection: sa.Connection, limit: int) -> list[Any]:
    return dialect.claim_tasks(connection, request("mail", limit=limit))[0]


def slots(dialect: MySQL, connection: sa.Connection, limit: int) -> list[Any]:
    names = [f"job{number}" for number in range(1, MANY + 1)]
    return dialect.claim(connection, request(*names, limit=limit))


@pytest.mark.parametrize("claim", [tasks, slots])
def test_a_claim_locks_only_what_it_takes(claim: Claiming, due: sa.Engine) -> None:
    """A second connection takes all rows that the first left."""
    dialect = MySQL(Tables(database="mysql"), DatabaseClock())
    with due.connect() as first, due.connect() as second:
        assert len(claim(dialect, first, 5)) == 5
        rows = dialect.tables.tasks
        free = sa.select(rows.c.task_name).where(
            ~rows.c.picked, rows.c.task_name != "x"
        )
        kind = Kind.TASK if claim is tasks else Kind.PLAN
        free = free.where(rows.c.kind == kind).with_for_update(skip_locked=True)
        assert len(second.execute(free).all()) == MANY - 5


@pytest.mark.parametrize("claim", [tasks, slots])
def test_a_claim_reads_an_index_in_its_order(claim: Claiming, due: sa.Engine) -> None:
    """No statement of it sorts rows or reads a table to find them."""
    dialect = MySQL(Tables(database="mysql"), DatabaseClock())
    sent: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, text: str, values: Any, *_: Any) -> None:
        if text.startswith("SELECT") and "tasks" in text:
            sent.append((text, values))

    with due.connect() as connection:
        sa.event.listen(connection, "before_cursor_execute", note)
        assert len(claim(dialect, connection, 5)) == 5
        sa.event.remove(connection, "before_cursor_execute", note)
        assert sent
        for text, values in sent:
            plan = connection.exec_driver_sql(f"EXPLAIN {text}", values).mappings()
            for step in plan:
                if step["table"] == "scheduled_tasks":
                    assert step["key"], (text, dict(step))
                    # The last look for a further priority finds none.
                    is_sorted = "filesort" not in (step["Extra"] or "")
                    assert is_sorted or int(step["rows"]) <= 1, text


def test_a_settlement_of_many_tasks_reads_them_by_key(due: sa.Engine) -> None:
    """A table read as a whole is locked as a whole."""
    dialect = MySQL(Tables(database="mysql"), DatabaseClock())
    sent: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, text: str, values: Any, *_: Any) -> None:
        if text.startswith("DELETE FROM"):
            sent.append((text, values))

    with due.connect() as connection:
        rows = tasks(dialect, connection, 500)
        claims = [
            Claim(row=row, holder="a:1:a", lease=LEASE, claimed_at=row.execution_time)
            for row in rows
        ]
        sa.event.listen(connection, "before_cursor_execute", note)
        assert dialect.finish(connection, claims)[1] == 500
        sa.event.remove(connection, "before_cursor_execute", note)
        connection.rollback()
        ((text, values),) = sent
        plan = connection.exec_driver_sql(f"EXPLAIN {text}", values).mappings()
        assert [step["key"] for step in plan] == ["PRIMARY"]
