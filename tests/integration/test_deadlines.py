"""Deadlines of connections to PostgreSQL: in force on every one, and no state of a session."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError
from tests.connections import HEARTBEAT, Open, conninfo, engines, show, with_query
from tests.kit.connections import is_transient, read_options, write_options

from slotwise.spi import describe_error


class TestDeadlines:
    """Every connection carries them."""

    @pytest.mark.parametrize("role", ["main", "heart"])
    def test_are_in_force(self, database: Open, role: str) -> None:
        """On both pools, as the settings derive them, and from the first statement on."""
        with engines(database(worker_name="w1"))[role].connect() as connection:
            assert show(connection, "statement_timeout") == "20s"
            assert show(connection, "lock_timeout") == "5s"
            assert show(connection, "idle_in_transaction_session_timeout") == "1min"
            assert show(connection, "timezone") == "UTC"
            told = conninfo(connection)
        assert (told["connect_timeout"], told["tcp_user_timeout"]) == ("10", "10000")
        assert (
            told["keepalives_idle"],
            told["keepalives_interval"],
            told["keepalives_count"],
        ) == ("5", "2", "3")

    def test_are_no_state_of_the_session(self, database: Open) -> None:
        """They came with the connection: RESET ALL, as poolers do it, changes nothing; who rests
        prepares nothing.
        """
        with database().main.connect() as connection:
            for _ in range(8):
                connection.exec_driver_sql("SELECT 1")
            connection.exec_driver_sql("RESET ALL")
            assert show(connection, "statement_timeout") == "20s"
            assert (
                connection.exec_driver_sql(
                    "SELECT count(*) FROM pg_prepared_statements"
                ).scalar_one()
                == 0
            )

    def test_names(self, database: Open) -> None:
        """pg_stat_activity says whose connection it is; a long name is cut, its role is not."""
        opened = database(worker_name="w1")
        with opened.main.connect() as main, opened.heart.connect() as heart:
            assert show(main, "application_name") == "slotwise w1"
            assert show(heart, "application_name") == "slotwise w1 heart"
        with database(worker_name="w" * 100).heart.connect() as heart:
            name = show(heart, "application_name")
            assert len(name) == 63
            assert name.endswith("w heart")

    def test_the_users_win(self, database: Open, pg_empty_url: str) -> None:
        """Deadlines and names in the address stand; the others are added to them."""
        address = with_query(
            pg_empty_url,
            options="-c statement_timeout=3s --work-mem=5MB -csearch_path=a,\\ b",
            application_name="mine",
            connect_timeout="4",
        )
        with database(address).main.connect() as connection:
            assert show(connection, "statement_timeout") == "3s"
            assert show(connection, "work_mem") == "5MB"
            assert show(connection, "search_path") == "a, b"
            assert show(connection, "lock_timeout") == "5s"
            assert show(connection, "application_name") == "mine"
            assert conninfo(connection)["connect_timeout"] == "4"

    def test_pgoptions(self, database: Open, monkeypatch: pytest.MonkeyPatch) -> None:
        """libpq's own variable is not lost by our options."""
        monkeypatch.setenv("PGOPTIONS", "-c lock_timeout=123ms")
        with database().main.connect() as connection:
            assert show(connection, "lock_timeout") == "123ms"
            assert show(connection, "statement_timeout") == "20s"

    def test_end_a_statement(self, database: Open) -> None:
        """A statement that hangs ends, and may be tried again."""
        engine = database(heartbeat_interval=HEARTBEAT).main
        with engine.connect() as connection, pytest.raises(DBAPIError) as caught:
            connection.exec_driver_sql("SELECT pg_sleep(30)")
        assert is_transient(caught.value)
        assert (
            describe_error(caught.value)
            == "canceling statement due to statement timeout [57014]"
        )

    def test_end_the_wait_for_a_lock(self, database: Open) -> None:
        """Below the heartbeat interval."""
        opened = database(heartbeat_interval=HEARTBEAT)
        with opened.main.begin() as holder, opened.main.connect() as waiter:
            holder.exec_driver_sql("SELECT pg_advisory_xact_lock(1)")
            with pytest.raises(DBAPIError) as caught:
                waiter.exec_driver_sql("SELECT pg_advisory_xact_lock(1)")
        assert is_transient(caught.value)
        assert "[55P03]" in describe_error(caught.value)

    def test_end_a_forgotten_transaction(
        self, database: Open, pg_empty_url: str
    ) -> None:
        """A frozen holder's locks end after a lease."""
        opened = database(heartbeat_interval=HEARTBEAT, missed_heartbeats_limit=3)
        patient = database(with_query(pg_empty_url, options="-c lock_timeout=20s"))
        with opened.main.connect() as frozen:
            frozen.exec_driver_sql("SELECT pg_advisory_xact_lock(1)")
            with patient.main.begin() as waiter:
                waiter.exec_driver_sql("SELECT pg_advisory_xact_lock(1)")
            with pytest.raises(DBAPIError) as caught:
                frozen.exec_driver_sql("SELECT 1")
        assert is_transient(caught.value)

    def test_not_for_migrations(self, database: Open) -> None:
        """Building an index takes as long as it takes; the link is watched all the same."""
        with database().migrations().connect() as connection:
            assert show(connection, "statement_timeout") == "0"
            assert show(connection, "lock_timeout") == "0"
            assert show(connection, "timezone") == "UTC"
            assert conninfo(connection)["tcp_user_timeout"] == "10000"


class TestPooler:
    """With `pooler`, deadlines go with each transaction, here seen on a plain server."""

    @pytest.mark.parametrize("role", ["main", "heart"])
    def test_local(self, database: Open, role: str) -> None:
        """In force in each transaction, and gone after it."""
        engine = engines(database(pooler=True))[role]
        with engine.connect() as connection:
            raw: Any = connection.connection.dbapi_connection
            for _ in range(2):
                with connection.begin():
                    assert show(connection, "statement_timeout") == "20s"
                    assert show(connection, "lock_timeout") == "5s"
                    assert (
                        show(connection, "idle_in_transaction_session_timeout")
                        == "1min"
                    )
                    assert show(connection, "timezone") == "UTC"
                assert raw.execute("SHOW statement_timeout").fetchone() == ("0",)
                raw.rollback()
            assert "options" not in conninfo(connection)

    def test_users_options(self, database: Open, pg_empty_url: str) -> None:
        """What the user put into `options` goes with each transaction too."""
        address = with_query(
            pg_empty_url, options="-c search_path=elsewhere -c lock_timeout=77ms"
        )
        with database(address, pooler=True).main.connect() as connection:
            assert show(connection, "search_path") == "elsewhere"
            assert show(connection, "lock_timeout") == "77ms"


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"a": "1"},
        {"a": "x y", "b.c": "back\\slash", "d": "'quoted' = "},
        {"search_path": '"$user", public'},
    ],
)
def test_options_read_back(parameters: dict[str, str]) -> None:
    """What is written is read."""
    assert read_options(write_options(parameters)) == parameters
