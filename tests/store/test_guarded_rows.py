"""Revision sw0003: reasons with underscores, and the guard of rows, on tables of the release
before.
"""

from __future__ import annotations

import time
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from tests.store.bench import Bench, a_job, at

from slotwise import Every, migrate
from slotwise.inspect import Inspection
from slotwise.spi import Database, tables

SLOTS = tables().slots
ATTEMPTS = tables().attempts
OLD = ("may still be running", "next slot", "own words - with blanks", None)
NEW = ("may_still_be_running", "next_slot", "own words - with blanks", None)


def fill(database: Database, reasons: tuple[str | None, ...]) -> None:
    """A lost or failed slot and an attempt of the job for each reason."""
    with database.main.begin() as connection:
        for number, reason in enumerate(reasons):
            key = {
                "task_name": "job",
                "task_instance": "recurring",
                "slot": at(number),
            }
            ended = {"outcome": "failed", "reason": reason}
            connection.execute(
                SLOTS.insert().values(**key, **ended, attempts=1, finished=at(60))
            )
            connection.execute(
                ATTEMPTS.insert().values(**key, **ended, token=number, number=1)
            )


def stored(database: Database, table: sa.Table) -> tuple[str | None, ...]:
    with database.main.begin() as connection:
        return tuple(
            connection.scalars(sa.select(table.c.reason).order_by(table.c.slot))
        )


def test_reasons_are_rewritten(database: Database) -> None:
    """The core's own only; a second time changes nothing, and a downgrade keeps them."""
    with database.migrations().connect() as connection:
        migrate.revert(connection, revision="sw0002")
        fill(database, OLD)
        for _ in range(2):
            assert migrate.apply(connection)[0] == "sw0003"
            assert stored(database, SLOTS) == stored(database, ATTEMPTS) == NEW
            assert migrate.revert(connection, revision="sw0002")[-1] == "sw0003"
        assert migrate.apply(connection)[0] == "sw0003"


def test_readers_know_both_forms(bench: Bench) -> None:
    """A worker of the release before writes the old one while it lives."""
    bench.plan(a_job("job", Every("1h")))
    fill(bench.database, OLD)
    inspect = Inspection(lambda: bench.store)
    found = {line.slot: line.reason for line in inspect.slots("job")}
    assert [found[at(number)] for number in range(len(OLD))] == list(NEW)
    attempts = [
        inspect.explain("job", at(number)).attempts for number in range(len(OLD))
    ]
    assert [{one.reason for one in found} for found in attempts] == [
        {one} for one in NEW
    ]
    told = " ".join(inspect.explain("job", at(1)).sentences)
    assert "It is not retried, because the next slot came first." in told


def test_the_audit_is_read_in_both_forms(bench: Bench) -> None:
    """Its rows never change."""
    with bench.database.main.begin() as connection:
        for command in ("skip-next", "skip_next", "calendar import a-b"):
            connection.execute(
                bench.tables.controls.insert().values(
                    at=at(0), author="ada", command=command
                )
            )
    found = [line.operation for line in bench.inspect.audit()]
    assert found == ["calendar import a-b", "skip_next", "skip_next"]


def test_the_guard_waits_for_five_seconds_at_most(pg_url: str) -> None:
    """A transaction that wrote a row keeps it from the lock; then it can be repeated."""
    engine = sa.create_engine(pg_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection, psycopg.connect(pg_url) as other:
        migrate.revert(connection, revision="sw0002")
        with psycopg.connect(pg_url, autocommit=True) as owner:
            owner.execute("DROP TRIGGER scheduled_keep_rows ON scheduled_tasks")
        other.execute("UPDATE scheduled_tasks SET priority = 1")
        other.execute("LOCK scheduled_tasks IN ROW EXCLUSIVE MODE")
        began = time.monotonic()
        with pytest.raises(sa.exc.OperationalError, match="lock timeout"):
            migrate.apply(connection)
        assert 4 < time.monotonic() - began < 60
        connection.rollback()
        other.rollback()
        assert migrate.apply(connection)[0] == "sw0003"
    engine.dispose()


def test_the_revision_is_alone_in_its_folder() -> None:
    """One line, one head."""
    folder = migrate.scripts() / "versions"
    found = [path.name[:6] for path in sorted(Path(folder).glob("sw*.py"))]
    assert found == [f"sw{number:04}" for number in range(1, len(found) + 1)]
