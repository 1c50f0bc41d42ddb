"""An upgrade under running workers: the old ones run on beside new ones, and the laws hold."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.integration.hearing import Heard
from tests.kit.laws import (
    Ledger,
    none_double,
    none_invented,
    none_missing,
    nothing_left,
    rows_and_ledger,
)

from slotwise import (
    CatchUp,
    Every,
    Item,
    JobContext,
    JobRegistry,
    SchemaMismatch,
    job,
    migrate,
    parse_schedule,
    task,
)
from slotwise.spi import tables

DUMMY = Path(__file__).parents[1] / "store" / "upgrade" / "sw9999_dummy.py"
EACH = Every("200ms")


class Side:
    """A worker of one release, and what it ran."""

    def __init__(self, url: str) -> None:
        self.ran: Counter[str] = Counter()
        self.heard = Heard()
        tick = job(name="tick", schedule=EACH, catch_up=CatchUp.all())(self._note)
        strict = job(
            name="strict", schedule=EACH, catch_up=CatchUp.all(), on_lost="give_up"
        )(self._note)
        self.mail = task(name="mail")(self._note)
        self.registry = JobRegistry(
            jobs=[tick, strict],
            tasks=[self.mail],
            listeners=[self.heard],
            database_url=url,
            process_hook=False,
            poll_interval="100ms",
            shutdown_grace="10s",
        )

    def _note(self, ctx: JobContext) -> None:
        self.ran[ctx.name] += 1

    def until_it_runs(self) -> None:
        for _ in range(600):
            if self.ran["tick"] and self.ran["strict"]:
                return
            threading.Event().wait(0.05)
        raise AssertionError(f"{self.ran} of its own after half a minute")


@pytest.fixture
def next_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The next release's revisions: ours, and one more."""
    shutil.copytree(migrate.scripts(), tmp_path / "migrations")
    shutil.copy(DUMMY, tmp_path / "migrations" / "versions")
    with monkeypatch.context() as next_release:
        next_release.setattr(
            "slotwise.migrate.revisions.scripts", lambda: tmp_path / "migrations"
        )
        next_release.setattr("slotwise.migrate.checks.SCHEMA_VERSION", 2)
        yield


@pytest.mark.parametrize("seconds", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_old_workers_run_on_after_an_upgrade(
    pg_url: str, request: pytest.FixtureRequest, seconds: int
) -> None:
    """Beside new ones, and none writes a column that it does not know; each slot and each task ran
    once.
    """
    old = Side(pg_url)
    old.registry.start()
    old.until_it_runs()
    request.getfixturevalue("next_revision")
    with old.registry.database.migrations().connect() as connection:
        assert migrate.apply(connection) == ["sw9999"]
        migrate.check(connection)
    old.ran.clear()
    new = Side(pg_url)
    new.registry.start()
    count = 0
    for _ in range(seconds * 5):
        for side in (old, new):
            with side.registry.database.main.begin() as connection:
                side.registry.client.schedule(
                    "mail", id=f"{count}", connection=connection
                )
            side.registry.client.schedule_many(
                side.mail,
                [Item(id=f"{count}-{number}", data=None) for number in range(3)],
            )
            count += 1
        threading.Event().wait(0.2)
    for side in (old, new):
        side.until_it_runs()
    assert (old.registry.stop(), new.registry.stop()) == (0, 0)
    _check(new, old.ran + new.ran, count * 4)
    for side in (old, new):
        side.registry.database.close()


def _check(side: Side, ran: Counter[str], tasks: int) -> None:
    with side.registry.database.migrations().connect() as connection:
        found = Ledger.read(connection, tables())
        witness = connection.execute(
            sa.text("SELECT what FROM scheduled_witness")
        ).all()
        now = connection.scalar(sa.text("SELECT statement_timestamp()"))
    assert witness == []
    breaches: list[Any] = list(rows_and_ledger(found))
    for name in ("tick", "strict"):
        row, entries = found.plan_row(name), found.planned(name)
        assert row is not None
        schedule = parse_schedule(row["schedule"])
        due = list(
            islice(
                schedule.slots(entries[0] - timedelta(microseconds=1), entries[-1]),
                10_000,
            )
        )
        breaches += [
            *none_missing(name, due, found),
            *none_invented(name, due, found),
            *none_double(name, due, found),
        ]
        assert {found.slots[name, slot]["outcome"] for slot in entries} <= {
            "succeeded",
            "skipped",
        }
    assert breaches == []
    assert ran["mail"] == tasks
    assert not any(row["kind"] == "task" for row in found.rows), "all tasks have run"
    assert now is not None
    assert not [
        one for one in nothing_left(found, now) if one.law != "nothing stays due"
    ]


@pytest.mark.usefixtures("next_revision")
def test_an_old_worker_does_not_start_on_newer_tables(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it would miss there it cannot know; the message says what to do."""
    side = Side(pg_url)
    with side.registry.database.migrations().connect() as connection:
        assert migrate.apply(connection) == ["sw9999"]
    with (
        monkeypatch.context() as old_release
    ):  # undone before the fixture's own change, which it would restore
        old_release.setattr("slotwise.migrate.checks.SCHEMA_VERSION", 1)
        with pytest.raises(
            SchemaMismatch,
            match="schema version 2, this slotwise knows 1; upgrade slotwise here",
        ):
            side.registry.start()
    side.registry.database.close()
