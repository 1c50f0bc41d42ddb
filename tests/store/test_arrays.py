"""Arrays as the server reads them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import psycopg
import pytest
from tests.kit.ports import instants, integers, intervals, texts

VALUES = {
    "none": [],
    "one": ["a"],
    "plain": ["a", "b c", ""],
    "comma and braces": ["a,b", "{}", "{a,b}"],
    "quotes": ['"', 'a"b', '","'],
    "a quote less and a quote more": ['a","b', "c"],
    "backslashes": ["\\", "a\\", '\\"'],
    "looks like null": ["NULL", "null"],
    "white space": [" ", "\t\n", " a "],
    "letters": ["ä€𝄞", "'"],
}


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
def test_texts(pg_empty_url: str, values: list[str]) -> None:
    """Whatever an id may be, the server gets it as it is."""
    with psycopg.connect(pg_empty_url) as connection:
        found = connection.execute("SELECT %s::text[]", (texts(values),)).fetchone()
    assert found == (values,)


def test_a_nul_is_an_error(pg_empty_url: str) -> None:
    """As with any text: no row can have such a key, and nothing is cut off silently."""
    with psycopg.connect(pg_empty_url) as connection, pytest.raises(psycopg.DataError):
        connection.execute("SELECT %s::text[]", (texts(["a\x00b"]),))


@pytest.mark.parametrize(
    "values", [[], [1], [-1, 0, 2**63 - 1]], ids=["none", "one", "the ends"]
)
def test_integers(pg_empty_url: str, values: list[int]) -> None:
    """To the end of bigint."""
    with psycopg.connect(pg_empty_url) as connection:
        found = connection.execute(
            "SELECT %s::bigint[]", (integers(values),)
        ).fetchone()
    assert found == (values,)


INSTANTS = {
    "none": [],
    "the same": [datetime(2026, 1, 1, tzinfo=UTC)] * 2,
    "the ends": [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    ],
    "elsewhere": [datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=-5)))],
    "not all": [None, datetime(2026, 1, 1, microsecond=1, tzinfo=UTC), None],
}


@pytest.mark.parametrize("values", INSTANTS.values(), ids=INSTANTS.keys())
def test_instants(pg_empty_url: str, values: list[datetime | None]) -> None:
    """To the microsecond, whatever zone they are said in."""
    with psycopg.connect(pg_empty_url, options="-c TimeZone=UTC") as connection:
        found = connection.execute(
            "SELECT %s::timestamptz[]", (instants(values),)
        ).fetchone()
    assert found == (values,)


def test_intervals(pg_empty_url: str) -> None:
    """To the microsecond; in a style of the session in which a sign counts for what follows."""
    values = [timedelta(0), timedelta(days=400, microseconds=1), timedelta(hours=-30)]
    for style in ("postgres", "sql_standard"):
        with psycopg.connect(
            pg_empty_url, options=f"-c IntervalStyle={style}"
        ) as connection:
            sent = (intervals(values),)
            seconds = connection.execute(
                "SELECT extract(epoch FROM i) FROM unnest(%s::interval[]) AS i", sent
            ).fetchall()
        assert [float(one) for (one,) in seconds] == [
            v.total_seconds() for v in values
        ]
