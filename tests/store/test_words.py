"""Members as parameters: the driver sends each as the text that it is."""

from __future__ import annotations

import psycopg
import pytest
import sqlalchemy as sa
from tests.kit.records import Record

from slotwise.spi import Database, Outcome, Reason, RowState, tables

PREPARED = """
    SELECT parameter_types::text FROM pg_prepared_statements
    WHERE statement LIKE '%unnest%' AND statement NOT LIKE '%pg_prepared%'
"""
PLAIN, WORDS = ("lost", "a text", None), (Outcome.LOST, "a text", None)


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_a_prepared_statement_takes_members_and_texts_alike(
    pg_empty_url: str, binary: bool
) -> None:
    """The parameters' types on the server are the same: no second statement is prepared for a
    member.
    """
    with psycopg.connect(
        pg_empty_url, autocommit=True, prepare_threshold=0
    ) as connection:
        cursor = connection.cursor(binary=binary)
        for word, words in (
            (Outcome.LOST, WORDS),
            ("lost", PLAIN),
            (Outcome.DEAD, (Outcome.DEAD, Reason.LATE)),
        ):
            sql = "SELECT %(one)s::text, unnest(%(all)s::text[])"
            found = cursor.execute(
                sql, {"one": word, "all": list(words)}, prepare=True
            ).fetchall()
            assert found == [(str(word), text) for text in words]
            assert {type(text) for row in found for text in row} <= {str, type(None)}
        prepared = connection.execute(PREPARED)
        assert prepared.fetchall() == [("{text,text[]}",)]


@pytest.mark.parametrize("is_binary", [False, True], ids=["text", "binary"])
def test_copy_takes_members(pg_empty_url: str, is_binary: bool) -> None:
    """With and without types that were set before."""
    with psycopg.connect(pg_empty_url) as connection:
        connection.execute("CREATE TEMP TABLE words (one text, other text)")
        with connection.cursor().copy(
            f"COPY words FROM STDIN{' (FORMAT BINARY)' * is_binary}"
        ) as copy:
            copy.set_types(["text", "text"])
            copy.write_row((Outcome.LOST, Reason.MAY_STILL_BE_RUNNING))
            copy.write_row((RowState.DEAD, "own words"))
        found = connection.execute("SELECT * FROM words").fetchall()
    assert found == [("lost", "may_still_be_running"), ("dead", "own words")]


def test_columns_take_members(database: Database) -> None:
    """Written by SQLAlchemy, compared with a member and with a text, and read as a plain text."""
    meta = tables().meta
    with database.main.begin() as connection:
        connection.execute(meta.insert().values(key=RowState.DEAD, value=Reason.LATE))
        for word in (RowState.DEAD, "dead"):
            where = (
                (meta.c.key == word)
                & meta.c.value.in_((Reason.LATE, "x"))
                & meta.c.key.is_distinct_from(word + "x")
            )
            found = connection.execute(
                sa.select(meta.c.key, meta.c.value).where(where)
            ).one()
            assert found == ("dead", "late")
            assert [type(text) for text in found] == [str, str]


def test_a_record_keeps_the_reason_as_it_came() -> None:
    """Nothing is converted for each row."""
    said = "own words"
    assert Record(outcome=Outcome.CANCELLED, reason=said).reason is said
    assert Record(outcome=Outcome.LOST, reason=Reason.RERUN).reason is Reason.RERUN
