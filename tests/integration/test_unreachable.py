"""A database that cannot be used: one line with place, reason and cure, and no secrets."""

from __future__ import annotations

import subprocess
import sys
import traceback
from typing import Any

import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError
from tests.connections import Open, with_query
from tests.kit.connections import is_transient

from slotwise import DatabaseRefused, DatabaseUnreachable, InvalidSetting


class TestUnreachable:
    """One line with host, port, database, reason and cure, and never a password."""

    WILD = "p%40ss%25w%3Frd%5E%5D"

    @pytest.mark.parametrize(
        ("change", "words", "refused"),
        [
            (
                {"port": 1},
                [
                    "port 1",
                    "Connection refused",
                    "start the server, or correct host and port",
                ],
                False,
            ),
            (
                {"host": "nowhere.invalid"},
                ["host nowhere.invalid", "correct the host name"],
                False,
            ),
            (
                {"database": "missing"},
                ["'missing'", "does not exist", "createdb missing"],
                True,
            ),
            ({"username": "nobody_here"}, ["nobody_here"], True),
        ],
        ids=["port", "host", "database", "user"],
    )
    def test_wrong_place(
        self,
        database: Open,
        pg_empty_url: str,
        change: dict[str, Any],
        words: list[str],
        refused: bool,
    ) -> None:
        """Each kind of wrong address; and whether a server was there that said so."""
        if "database" not in change:  # for that error the server must let us in
            change = {**change, "password": "p@ss%w?rd^]"}
        url = make_url(pg_empty_url).set(**change)
        with pytest.raises(DatabaseUnreachable) as caught:
            database(url.render_as_string(hide_password=False)).verify()
        message = str(caught.value)
        assert "\n" not in message
        for word in words:
            assert word in message
        assert is_transient(caught.value)
        assert isinstance(caught.value, DatabaseRefused) == refused
        everything = "".join(traceback.format_exception(caught.value))
        for secret in ("p@ss%w", self.WILD):
            assert secret not in everything

    def test_unknown_option(self, database: Open, pg_empty_url: str) -> None:
        """A mistyped option is found before connecting."""
        with pytest.raises(
            InvalidSetting, match=r"is unknown to libpq; did you mean sslmode\?"
        ):
            database(with_query(pg_empty_url, sslmod="require"))

    @pytest.mark.parametrize(
        ("query", "words"),
        [
            ("pgbouncer=true&connection_limit=1", ("'pgbouncer'", "pooler = true")),
            ("connection_limit=1", ("'connection_limit'", "pool_size")),
            ("schema=public", ("'schema'", "--schema")),
            ("currentSchema=jobs", ("'currentSchema'", "--schema")),
            ("prepareThreshold=0", ("'prepareThreshold'", "pooler = true")),
            ("statement_cache_size=0", ("'statement_cache_size'", "pooler = true")),
            ("socketTimeout=30", ("'socketTimeout'", "connect_timeout")),
            ("pool_size=5", ("'pool_size'", "SLOTWISE_POOL_SIZE")),
        ],
    )
    def test_an_option_of_another_tool(
        self, database: Open, query: str, words: tuple[str, ...]
    ) -> None:
        """It is named, with what to write in its place."""
        with pytest.raises(InvalidSetting) as refused:
            database(f"postgresql://u:secret@h/db?{query}")
        for word in words:
            assert word in str(refused.value)

    def test_an_unknown_option_is_named(self, database: Open) -> None:
        """Unless it may be a piece of a password."""
        with pytest.raises(
            InvalidSetting, match="option 'colour' of the database address"
        ):
            database("postgresql://u@h/db?colour=blue")
        with pytest.raises(InvalidSetting) as refused:
            database("postgresql://u@h/db?password=pa&hunter2=blue")
        assert "hunter2" not in str(refused.value)

    def test_wrong_options(self, database: Open, pg_empty_url: str) -> None:
        """So is one that the server could not take."""
        with pytest.raises(
            InvalidSetting,
            match=r"item 1 of the options .* is not understood; write -c name=value",
        ):
            database(with_query(pg_empty_url, options="work_mem=1"))

    def test_parameters_stay_out_of_messages(self, database: Open) -> None:
        """A payload in a failing statement is not written to the log."""
        payload = "-".join(["ge", "heim"])  # a traceback quotes this line, too
        with (
            database().main.connect() as connection,
            pytest.raises(DBAPIError) as caught,
        ):
            connection.exec_driver_sql("SELECT %s::text, 1/0", (payload,))
        assert payload not in "".join(traceback.format_exception(caught.value))


NO_LIBPQ = """
import ctypes.util, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("psycopg_binary", "psycopg_c"):
            raise ImportError(f"hidden: {name}")

sys.meta_path.insert(0, Hidden())
ctypes.util.find_library = lambda name: None

from slotwise.errors import DriverMissing
from slotwise.settings.settings import Settings
from slotwise.store.connect.database import Database

try:
    Database(Settings.load(environ={}, database_url=sys.argv[1])).verify()
except DriverMissing as error:
    print(error)
"""


@pytest.mark.parametrize("address", ["postgresql://h/d", "host=h dbname=d"])
def test_no_libpq(address: str) -> None:
    """One line that names the extra."""
    command = [sys.executable, "-c", NO_LIBPQ, address]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=30, check=False
    )
    assert (
        done.stdout
        == "No usable libpq was found; run: pip install 'slotwise[binary]'\n"
    ), done.stderr
