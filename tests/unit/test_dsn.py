"""Database addresses: every spelling, no password in any message."""

from __future__ import annotations

import subprocess
import sys

import pytest
from sqlalchemy import create_engine

from slotwise.errors import InvalidSetting
from slotwise.store.connect.dsn import connect_arguments, database_url, safe

WILD = "p@ss%w?rd^]/#:&"  # what a password generator makes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://", {}),
        ("postgres://u@h/d", {"user": "u", "host": "h", "dbname": "d"}),
        ("POSTGRES://u@h/d", {"user": "u", "host": "h", "dbname": "d"}),
        ("postgresql://u:p@h:5433/d", {"user": "u", "password": "p", "host": "h", "port": "5433", "dbname": "d"}),
        ("postgresql+psycopg://h/d", {"host": "h", "dbname": "d"}),
        ("postgresql+psycopg2://h/d", {"host": "h", "dbname": "d"}),
        ("postgresql+asyncpg://h/d?ssl=require", {"host": "h", "dbname": "d", "sslmode": "require"}),
        ("jdbc:postgresql://h:1/d?user=u&password=p&ssl=true",
         {"host": "h", "port": "1", "dbname": "d", "user": "u", "password": "p", "sslmode": "require"}),
        ("postgresql:///d?host=/tmp", {"dbname": "d", "host": "/tmp"}),
        ("postgresql:///d?host=/tmp&port=5433", {"dbname": "d", "host": "/tmp", "port": "5433"}),
        ("postgresql://u@%2Fvar%2Frun/d", {"user": "u", "dbname": "d", "host": "/var/run"}),
        ("postgresql://[::1]:5433/d", {"host": "::1", "port": "5433", "dbname": "d"}),
        ("postgresql://my_db.internal/d", {"host": "my_db.internal", "dbname": "d"}),
        ("postgresql://a:1,b/d?target_session_attrs=read-write",
         {"host": "a,b", "port": "1,", "dbname": "d", "target_session_attrs": "read-write"}),
        ("postgresql:///d?host=a:1&host=b:2", {"host": "a,b", "port": "1,2", "dbname": "d"}),
        ("postgresql:///d?host=a,b&port=1,2", {"host": "a,b", "port": "1,2", "dbname": "d"}),
        ("postgresql://h/d?sslmode=verify-full&application_name=my+app",
         {"host": "h", "dbname": "d", "sslmode": "verify-full", "application_name": "my+app"}),
        ("postgresql://h/d?options=-c%20statement_timeout%3D5s",
         {"host": "h", "dbname": "d", "options": "-c statement_timeout=5s"}),
        ("postgresql://h/d?options=-c+a%3Db", {"host": "h", "dbname": "d", "options": "-c a=b"}),
        ("host=/tmp dbname=x user=y", {"host": "/tmp", "dbname": "x", "user": "y"}),
        ("host = h password = 'a b\\'c' port=5433", {"host": "h", "password": "a b'c", "port": "5433"}),
        ("service=mine", {"service": "mine"}),
        ("host=@abstract dbname=x", {"host": "@abstract", "dbname": "x"}),
        ("postgresql://u@tenant:p@h/d", {"user": "u@tenant", "password": "p", "host": "h", "dbname": "d"}),
        (f"postgresql://u:{WILD}@h/d", {"user": "u", "password": WILD, "host": "h", "dbname": "d"}),
        ("postgresql://u:p%40s%2Fs@h/d", {"user": "u", "password": "p@s/s", "host": "h", "dbname": "d"}),
        ("  postgresql://h/d\n", {"host": "h", "dbname": "d"}),
    ],
    ids=lambda value: value.strip()[:50] if isinstance(value, str) else "",
)  # fmt: skip
def test_postgresql_spellings(text: str, expected: dict[str, str]) -> None:
    """Each becomes psycopg's URL with libpq's keywords, and SQLAlchemy accepts it."""
    url = database_url(text)
    assert url.drivername == "postgresql+psycopg"
    assert connect_arguments(url) == expected
    create_engine(url)
    again = database_url(url.render_as_string(hide_password=False))
    assert connect_arguments(again) == expected


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("sqlite://", None),
        ("sqlite:///:memory:", ":memory:"),
        ("sqlite:///slotwise.db", "slotwise.db"),
        ("sqlite:////var/lib/slotwise.db", "/var/lib/slotwise.db"),
        ("sqlite+pysqlite:///slotwise.db", "slotwise.db"),
        ("sqlite+aiosqlite:///slotwise.db", "slotwise.db"),
    ],
)
def test_sqlite_spellings(text: str, file: str | None) -> None:
    """Each becomes the standard library's."""
    url = database_url(text)
    assert (url.drivername, url.database) == ("sqlite+pysqlite", file)


@pytest.mark.parametrize("text", [None, "", "  "])
def test_no_address(text: str | None) -> None:
    """All four places where one can be given are named."""
    with pytest.raises(InvalidSetting) as caught:
        database_url(text)
    for place in ("--database-url", "SLOTWISE_DATABASE_URL", " DATABASE_URL", "slotwise.toml"):
        assert place in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("slotwise", "'slotwise' is not a database address"),
        ("user:se^cret@host/db", "is not a database address"),
        ("mysql://u:se^cret@h/d", "mysql databases are not supported"),
        ("sqlite://file.db", "three slashes"),
        ("postgresql:/h/d", "is not a database address"),
        ("postgresql://u:se^cret@h:port/d", "percent-encoded"),
        ("postgresql://u:se^cret@h/d?sslmode", "percent-encoded"),
        ("host=h password=se^ cret user=u", "each option is key=value"),
        ("host=h password='se^ cret", "each option is key=value"),
        ("host=h sslmod=require password=se^cret", "each option is key=value"),
    ],
)
def test_wrong_address(text: str, words: str) -> None:
    """One line with the cure, and without the password."""
    with pytest.raises(InvalidSetting) as caught:
        database_url(text)
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert "cret" not in message
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://u:{WILD}@h/d",
        f"postgres://u:{WILD} and more@h/d",
        f"postgresql://h/d?user=u&password={WILD}",
        f"host=h password={WILD} user=u",
        f"host=h password='{WILD} \\' more' user=u",
        f"host=h password = '{WILD}",
        f"host=h sslpassword={WILD}",
        f"{{'host': 'h', 'password': '{WILD}'}}",
        f"cannot connect: postgresql://u:{WILD}@h/d is wrong",
    ],
)
def test_safe_text(text: str) -> None:
    """No piece of the password is left in what people read."""
    shown = safe(text)
    assert "ss%w" not in shown
    assert "rd^" not in shown
    assert "more" not in shown or "and more" not in text
    assert "***" in shown


@pytest.mark.parametrize("text", ["sqlite:///a.db", "postgresql://h/d", "host=h user=u", "postgresql://h:5432/d"])
def test_safe_leaves_the_rest(text: str) -> None:
    """What holds no password stays readable."""
    assert safe(text) == text


def test_safe_url() -> None:
    """A URL too, with the secrets of its query."""
    url = database_url("postgresql://u:geheim@h/d?sslpassword=geheim&sslmode=require")
    assert "geheim" not in safe(url)
    assert "sslmode=require" in safe(url)


def test_importing_slotwise_does_not_import_a_driver() -> None:
    """An application that only declares jobs needs neither libpq nor the time to load it."""
    program = (
        "import sys, slotwise, slotwise.settings, slotwise.store.connect.database, slotwise.store.connect.dsn\n"
        "sys.exit(sorted(name for name in sys.modules if name.startswith('psycopg')) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
