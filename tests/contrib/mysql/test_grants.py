"""What accounts of MariaDB may do with the grants of their part, and what they may not."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from tests.databases import provision

from slotwise import (
    ConfigurationError,
    Every,
    JobContext,
    JobRegistry,
    Settings,
    TaskContext,
    job,
    task,
)
from slotwise.operations import Schema
from slotwise.spi import Database


@task(name="mail")
def mail(ctx: TaskContext[int]) -> None: ...


@job(name="tick", schedule=Every("1h"))
def tick(ctx: JobContext) -> None: ...


def account(url: str, role: str) -> str:
    """The address of an account that has these rights alone."""
    schema = Schema(Settings(database_url=url))
    with Database(Settings(database_url=url)).migrations().begin() as connection:
        connection.exec_driver_sql(f"CREATE OR REPLACE USER 'w_{role}'@'%%'")
    schema.grant(role, f"w_{role}")
    return url.replace("root@", f"w_{role}@")


@pytest.fixture
def url(mysql_empty_url: str) -> str:
    provision(mysql_empty_url)
    return mysql_empty_url


def test_a_worker_runs_what_an_enqueuer_schedules(url: str) -> None:
    shop = JobRegistry(tasks=[mail], database_url=account(url, "enqueuer"))
    shop.client.schedule(mail, 1, id="mine")
    shop.client.schedule(mail, 1, id="mine")
    with (
        pytest.raises(sa.exc.DBAPIError, match="denied"),
        shop.database.transaction() as connection,
    ):
        connection.execute(sa.text("DELETE FROM scheduled_tasks"))
    shop.database.close()
    registry = JobRegistry(
        jobs=[tick], tasks=[mail], database_url=account(url, "worker")
    )
    registry.start()
    registry.stop()


def test_no_account_is_made_without_a_password(url: str) -> None:
    with pytest.raises(ConfigurationError, match="CREATE USER"):
        Schema(Settings(database_url=url)).grant("worker", "nobody_yet")


@pytest.mark.parametrize("name", ["", "a'b", "a`b", 'a"b', "a\\b", "a\nb"])
def test_what_can_be_no_account_is_refused(url: str, name: str) -> None:
    with pytest.raises(ConfigurationError, match="no name of an account"):
        Schema(Settings(database_url=url)).grants("worker", name)


@pytest.mark.parametrize("role", Schema.roles)
def test_each_role_is_granted(url: str, role: str) -> None:
    own = account(url, role)
    database = Database(Settings(database_url=own))
    with database.migrations().begin() as connection:
        seen = connection.execute(sa.text("SELECT count(*) FROM scheduled_meta"))
        assert seen.scalar_one() == 2
    database.close()
