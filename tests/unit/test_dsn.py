"""Database addresses: every spelling, no password in any message."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from sqlalchemy import create_engine
from tests.kit.ports import plugged_in

from slotwise import ConfigurationError, InvalidSetting
from slotwise.spi import connect_arguments, database_url, hide_password

WILD = "p@ss%w?rd^]/#:&"  # what a password generator makes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://", {}),
        ("postgres://u@h/d", {"user": "u", "host": "h", "dbname": "d"}),
        ("POSTGRES://u@h/d", {"user": "u", "host": "h", "dbname": "d"}),
        (
            "postgresql://u:p@h:5433/d",
            {"user": "u", "password": "p", "host": "h", "port": "5433", "dbname": "d"},
        ),
        (
            "postgresql://h:0/d",
            {"host": "h", "port": "0", "dbname": "d"},
        ),  # libpq rejects it
        ("postgresql+psycopg://h/d", {"host": "h", "dbname": "d"}),
        ("postgresql+psycopg2://h/d", {"host": "h", "dbname": "d"}),
        (
            "postgresql+asyncpg://h/d?ssl=require",
            {"host": "h", "dbname": "d", "sslmode": "require"},
        ),
        (
            "jdbc:postgresql://h:1/d?user=u&password=p&ssl=true",
            {
                "host": "h",
                "port": "1",
                "dbname": "d",
                "user": "u",
                "password": "p",
                "sslmode": "require",
            },
        ),
        ("postgresql:///d?host=/tmp", {"dbname": "d", "host": "/tmp"}),
        (
            "postgresql:///d?host=/tmp&port=5433",
            {"dbname": "d", "host": "/tmp", "port": "5433"},
        ),
        (
            "postgresql://u@%2Fvar%2Frun/d",
            {"user": "u", "dbname": "d", "host": "/var/run"},
        ),
        ("postgresql://[::1]:5433/d", {"host": "::1", "port": "5433", "dbname": "d"}),
        ("postgresql://my_db.internal/d", {"host": "my_db.internal", "dbname": "d"}),
        (
            "postgresql://a:1,b/d?target_session_attrs=read-write",
            {
                "host": "a,b",
                "port": "1,",
                "dbname": "d",
                "target_session_attrs": "read-write",
            },
        ),
        (
            "postgresql:///d?host=a:1&host=b:2",
            {"host": "a,b", "port": "1,2", "dbname": "d"},
        ),
        (
            "postgresql:///d?host=a,b&port=1,2",
            {"host": "a,b", "port": "1,2", "dbname": "d"},
        ),
        (
            "postgresql://h/d?sslmode=verify-full&application_name=my+app",
            {
                "host": "h",
                "dbname": "d",
                "sslmode": "verify-full",
                "application_name": "my+app",
            },
        ),
        (
            "postgresql://h/d?options=-c%20statement_timeout%3D5s",
            {"host": "h", "dbname": "d", "options": "-c statement_timeout=5s"},
        ),
        (
            "postgresql://h/d?options=-c+a%3Db",
            {"host": "h", "dbname": "d", "options": "-c a=b"},
        ),
        ("host=/tmp dbname=x user=y", {"host": "/tmp", "dbname": "x", "user": "y"}),
        (
            "host = h password = 'a b\\'c' port=5433",
            {"host": "h", "password": "a b'c", "port": "5433"},
        ),
        ("service=mine", {"service": "mine"}),
        ("host=@abstract dbname=x", {"host": "@abstract", "dbname": "x"}),
        (
            "postgresql://u@tenant:p@h/d",
            {"user": "u@tenant", "password": "p", "host": "h", "dbname": "d"},
        ),
        (
            f"postgresql://u:{WILD}@h/d",
            {"user": "u", "password": WILD, "host": "h", "dbname": "d"},
        ),
        (
            "postgresql://u:p%40s%2Fs@h/d",
            {"user": "u", "password": "p@s/s", "host": "h", "dbname": "d"},
        ),
        ("  postgresql://h/d\n", {"host": "h", "dbname": "d"}),
    ],
    ids=lambda value: value.strip()[:50] if isinstance(value, str) else "",
)
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
    for place in (
        "--database-url",
        "SLOTWISE_DATABASE_URL",
        " DATABASE_URL",
        "slotwise.toml",
    ):
        assert place in str(caught.value)


#: Addresses that cannot be parsed or are not supported, and what the message says. ``sesame`` is
#: the secret.
WRONG = [
    ("sesame", "begins with neither"),
    ("sesame://", "begins with neither"),
    ("sesame://h/d", "begins with neither"),
    ("user:sesame@host/db", "begins with neither"),
    ("user:p://sesame@host/db", "begins with neither"),
    ("//user:sesame@host/db", "begins with neither"),
    ("'postgresql://u:sesame@h/d'", "begins with a quote, which is part of the value"),
    ('"postgresql://u:sesame@h/d"', "begins with a quote, which is part of the value"),
    ('"postgresql://u:sesame@h/d', "begins with a quote, which is part of the value"),
    ("'host=h password=sesame'", "begins with a quote, which is part of the value"),
    ('"sqlite:///sesame.db"', "begins with a quote, which is part of the value"),
    ("postgresql//u:sesame@h/d", "begins with neither"),
    ("psql://u:sesame@h/d", "begins with neither"),
    ("psql 'host=h password=sesame'", "begins with neither"),
    ("psql -h h -U u # sesame", "begins with neither"),
    ("DATABASE_URL: postgresql://u:sesame@h/d", "begins with neither"),
    ("-h h -U u -W sesame", "begins with neither"),
    ("{'host': 'h', 'password': 'sesame'}", "begins with neither"),
    ("oracle://u:sesame@h/d", "oracle databases are not supported"),
    ("oracle+pyoracle://u:sesame@h/d", "oracle databases are not supported"),
    ("jdbc:oracle://h/d?user=u&password=sesame", "oracle databases are not supported"),
    ("jdbc:sqlserver://h;user=u;password=sesame", "begins with neither"),
    ("mssql://u:sesame@h/d?Pwd=sesame", "mssql databases are not supported"),
    ("mongodb://u:sesame@h/d", "mongodb databases are not supported"),
    ("oracle:u/sesame@h", "oracle databases are not supported"),
    ("redis://:sesame@h/0", "begins with neither"),
    ("sqlite://sesame", "three slashes"),
    ("sqlite://u:sesame@h/file.db", "three slashes"),
    ("sqlite:sesame", "not a file path"),
    ("postgresql:/u:sesame@h/d", "percent-encoded"),
    ("postgresql:u:sesame@h/d", "percent-encoded"),
    ("postgresql://u:sesame@h:port/d", "a port is a number, and "),
    ("postgresql://u:sesame@h d/d", "percent-encoded"),
    ("postgresql://u:sesame@h/d?sslmode", "percent-encoded"),
    ("postgresql://u:sesame@h/d/e", "percent-encoded"),
    ("postgresql://h;Pwd=sesame/d", "percent-encoded"),
    ("postgresql://h%3BPwd%3Dsesame/d", "a host holds no"),
    ("postgresql:///d?host=h;Pwd=sesame", "a host holds no"),
    ("host=h password=se same sesame user=u", "each option must be key=value"),
    ("host=h password='sesame", "each option must be key=value"),
    ("host=h sslmod=require password=sesame", "each option must be key=value"),
    ("Server=h;Database=d;User Id=u;Pwd=sesame", "each option must be key=value"),
    (
        "Driver={PostgreSQL};Server=h;Uid=u;Pwd=sesame;",
        "each option must be key=value",
    ),
    ("Data Source=h;Password=sesame", "begins with neither"),
    ("host=h;Pwd=sesame", "a host holds no"),
    ("host='h Pwd=sesame' user=u", "a host holds no"),
    ("host=h port=5432;Pwd=sesame", "a port is a number"),
    ("host=h port=sesame", "a port is a number"),
    ("password: sesame", "begins with neither"),
]


@pytest.mark.parametrize(("text", "words"), WRONG, ids=[text for text, _ in WRONG])
def test_wrong_address(text: str, words: str) -> None:
    """One line with the cure, and no piece of the address: any of it may be the password."""
    with pytest.raises(InvalidSetting) as caught:
        database_url(text)
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert "sesame" not in message
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
        f"Server=h;Pwd={WILD}",
        f"{{'host': 'h', 'password': '{WILD}'}}",
        f"cannot connect: postgresql://u:{WILD}@h/d is wrong",
    ],
)
def test_safe_text(text: str) -> None:
    """No piece of the password is left in what people read."""
    shown = hide_password(text)
    assert "ss%w" not in shown
    assert "rd^" not in shown
    assert "more" not in shown or "and more" not in text
    assert "***" in shown


@pytest.mark.parametrize(
    "text",
    ["sqlite:///a.db", "postgresql://h/d", "host=h user=u", "postgresql://h:5432/d"],
)
def test_safe_leaves_the_rest(text: str) -> None:
    """What holds no password stays readable."""
    assert hide_password(text) == text


@pytest.mark.extended
@pytest.mark.parametrize(
    "piece",
    [
        "a.",
        "a://b:",
        "://:",
        "a://b:@",
        "password='",
        "password='\\",
        'password="',
        "password=",
        "password= ",
        "pwd=a ",
        "x",
    ],
)
def test_hiding_takes_linear_time(piece: str) -> None:
    """Whoever writes a row or an error chooses this text: a megabyte of it costs as much as ten
    tenths of it.
    """
    long = (piece * (1 << 20))[: 1 << 20]
    for end in ("", "\\", "@"):
        assert seconds(long + end) < 40 * max(
            seconds(long[: len(long) // 10] + end), 0.001
        )


def seconds(text: str) -> float:
    began = time.process_time()
    hide_password(text)
    return time.process_time() - began


def test_importing_slotwise_does_not_import_a_driver() -> None:
    """An application that only declares jobs needs neither libpq nor the time to load it."""
    program = (
        "import sys, slotwise, slotwise.settings, "
        "slotwise.store.connect.database, slotwise.store.connect.dsn\n"
        "sys.exit(sorted(name for name in sys.modules if name.startswith('psycopg')) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_database_without_its_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite is found by entry points: where they are missing, one line says what to do."""
    plugged_in.cache_clear()
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **which: ())
    for address in ("sqlite:///secret.db", "mysql://user:secret@host/jobs"):
        kind = address.partition(":")[0]
        with pytest.raises(
            ConfigurationError,
            match=f"no installed package has the entry point '{kind}' of "
            "slotwise.addresses: this installation of slotwise is incomplete; install it",
        ) as raised:
            database_url(address)
        assert "secret" not in str(raised.value)
        assert "\n" not in str(raised.value)
