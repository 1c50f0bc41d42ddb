"""The tables of MariaDB: made, checked, dropped, and completed after a kill."""

from __future__ import annotations

import sqlalchemy as sa

from slotwise import Settings
from slotwise.migrate.schema import Schema
from slotwise.spi import Database


def test_an_upgrade_makes_all_tables(mysql_empty_url: str) -> None:
    settings = Settings(database_url=mysql_empty_url)
    schema = Schema(settings)
    upgraded = schema.upgrade()
    assert upgraded.applied[0] == "sw0001"
    assert schema.check() == []
    assert schema.upgrade().applied == []


def test_a_second_test_finds_the_tables_empty(mysql_url: str) -> None:
    database = Database(Settings(database_url=mysql_url))
    with database.transaction() as connection:
        found = connection.scalar(sa.text("SELECT count(*) FROM scheduled_tasks"))
    database.close()
    assert found == 0
