"""The test kit's disposable database, calendars, and the fixtures that use them."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
import sqlalchemy as sa

from slotwise import (
    Calendar,
    ConfigurationError,
    Every,
    JobContext,
    JobRegistry,
    job,
    task,
)
from slotwise.spi import Database, tables
from slotwise.testing import ManualWorker, disposable_database

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def without_xdist(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests name databases of their own, also where they run side by side."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)


@task
def mail(to: str) -> None: ...


@job(schedule=Every("1h"))
def hourly(ctx: JobContext) -> None: ...


@job(schedule="EXCLUDING(DAILY|09:00|Europe/Vienna; AT; following)")
def report(ctx: JobContext) -> None:
    days.append(ctx.slot.date())


days: list[date] = []


def rows(database: Database) -> int:
    names = tables(database.settings.table_prefix, database.settings.schema)
    found = 0
    with database.main.connect() as connection:
        for table in names.metadata.tables.values():
            if table is not names.meta:
                counted = sa.select(sa.func.count()).select_from(table)
                found += connection.scalar(counted) or 0
    return found


def leave_rows(database: Database) -> None:
    """A job with history, a task, and a calendar."""
    calendar = Calendar(name="AT", days={date(2026, 1, 1)})
    with ManualWorker([hourly, mail], database, calendars=[calendar]) as worker:
        worker.tick("1h")
        assert len(worker.run_due()) == 1
        worker.client.schedule(mail.call("ann"), id="1")
    assert rows(database) > 4


def check_emptied(url: str) -> None:
    for _ in range(2):  # as two runs of pytest
        with disposable_database(url, poll_interval="5s") as database:
            assert rows(database) == 0
            leave_rows(database)
    address = database.settings.database_url
    assert address is not None
    ManualWorker([hourly], address).close()  # its rows are no foreign ones


def test_a_file_is_emptied(tmp_path: Path) -> None:
    check_emptied(f"sqlite:///{tmp_path}/shop_test.db")


def test_a_lasting_postgresql_is_emptied(pg_url: str) -> None:
    """The database is created, and has rows of any age at the next run."""
    url = sa.make_url(pg_url)
    check_emptied(
        url.set(database=f"{url.database}_test").render_as_string(hide_password=False)
    )


def test_each_process_has_a_database_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw3")
    with disposable_database(f"sqlite:///{tmp_path}/shop_test.db") as database:
        assert str(database.settings.database_url).endswith("shop_test_gw3.db")


@pytest.mark.parametrize(
    "url", ["postgresql://localhost/shop", "sqlite:////var/test/shop.db", "sqlite://"]
)
def test_other_names_are_refused(url: str) -> None:
    """Only the database's own name counts: it says that it may be emptied."""
    with (
        pytest.raises(ConfigurationError, match="does not have 'test' in it; name it"),
        disposable_database(url),
    ):
        pass


def test_a_database_with_live_workers_is_not_emptied(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop_test.db"
    with disposable_database(url):
        registry = JobRegistry(jobs=[hourly], database_url=url)
    with (
        registry,
        pytest.raises(
            ConfigurationError, match="has 1 live workers, so it is not emptied"
        ),
        disposable_database(url),
    ):
        pass


def test_calendars_of_the_kit() -> None:
    """A schedule that names a calendar finds the one that the test gives."""
    days.clear()
    with ManualWorker([report], calendars=[Calendar.country("AT", [2026])]) as worker:
        for _ in range(8):
            worker.tick("1d")
            worker.run_due()
    assert date(2026, 1, 6) not in days
    assert date(2026, 1, 7) in days


def test_calendars_of_countries() -> None:
    austria = Calendar.country("at")
    assert austria.name == "AT"
    assert {date(2026, 1, 6), date(2026, 12, 25)} <= austria.days
    assert date(2026, 11, 1) in Calendar.country("DE-BY", [2026]).days
    with pytest.raises(ConfigurationError, match="library has no ATT9"):
        Calendar.country("ATT9")


SUITE = """
from slotwise import Every, JobRegistry, job, task

@task
def mail(to: str): return to

@job(schedule=Every("1h"))
def hourly(): pass

registry = JobRegistry(jobs=[hourly], tasks=[mail], database_url="sqlite:///nowhere.db")

def test_worker(slotwise_worker):
    worker = slotwise_worker([hourly, mail])
    worker.client.schedule(mail.call("ann"), id="1", if_exists="raise")
    worker.tick("1h")
    assert len(worker.run_due()) == 2
    worker.client.schedule(mail.call("bob"), id="2", delay="1h")

def test_override(slotwise_override, slotwise_scheduled):
    registry_here = slotwise_override(registry)
    assert registry.client.list() == []
    tasks = slotwise_scheduled(registry)
    registry.client.schedule(mail.call("ann"), id="1", if_exists="raise")
    assert tasks.run(tasks.one(mail, to="ann")) == "ann"
    assert registry_here.settings.database_url.endswith(NAME)
"""


def test_pytest_passes_twice(pytester: pytest.Pytester) -> None:
    """With a lasting database named in the configuration, and with the option."""
    pytester.makepyfile(SUITE.replace("NAME", "'shop_test.db'"))
    address = f"sqlite:///{pytester.path}/shop_test.db"
    pytester.makepyprojecttoml(
        f'[tool.pytest.ini_options]\nslotwise_disposable_database = "{address}"'
    )
    for _ in range(2):
        run = pytester.runpytest_subprocess("-p", "no:cacheprovider")
        run.assert_outcomes(passed=2)
    option = (
        f"--slotwise-disposable-database=sqlite:///{pytester.path}/other_shop_test.db"
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider", option).assert_outcomes(
        passed=2
    )


def test_the_fixture_says_what_to_configure(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(slotwise_disposable_database): pass")
    run = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    run.assert_outcomes(errors=1)
    run.stdout.fnmatch_lines(["*slotwise_disposable_database is not set; write into*"])
