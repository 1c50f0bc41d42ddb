"""Listens to every statement that this process sends during a test run: functions bear their
schema.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest
import sqlalchemy as sa
from tests.ledger_author import sender

#: What is written as a function, and is PostgreSQL's grammar or a built-in of the parser.
_GRAMMAR = """
    all any array as by cast check coalesce distinct except exists extract filter from greatest
    in including index insert into key least
not nullif on or order over primary references row select
    set table then unique using values varchar when where with and else materialized
    numeric returns decimal char character
"""
GRAMMAR = frozenset(_GRAMMAR.split())
#: The parser resolves it itself, always to pg_catalog's.
_SEVERAL_ARRAYS = re.compile(r"\bunnest\((?:[^(),]|\([^()]*\))+,")
#: Files whose statements no worker and no command sends: they own their database.
OWNERS = ("bench/", "demo/", "embedded/")
_LITERALS = re.compile(r"'(?:[^']|'')*'")
_CALLS = re.compile(r'(?<![\w."$@])([a-z_][a-z_0-9]*)\s?\(', re.IGNORECASE)
#: The columns of what stands in FROM, of a WITH and of a table: no calls.
_NAMES = re.compile(
    r'\b(?:AS|INTO|WITH|RECURSIVE|REFERENCES|TABLE|ON|INDEX)\s+(?:IF NOT EXISTS\s+)?[\w."]+\s*\(|'
    r"\bCOPY\s+\S+\s*\(|\)\s*,\s*\w+\s+AS\b",
    re.IGNORECASE,
)


@lru_cache(maxsize=4096)
def unqualified(statement: str) -> tuple[str, ...]:
    """Return the functions in this statement whose schema the search_path decides."""
    text = _SEVERAL_ARRAYS.sub("(", _NAMES.sub("(", _LITERALS.sub("''", statement)))
    return tuple(
        sorted(name for name in set(_CALLS.findall(text)) if name.lower() not in GRAMMAR)
    )


@pytest.fixture(scope="session", autouse=True)
def functions_are_qualified() -> Iterator[None]:
    """Fail the run if slotwise has sent PostgreSQL a function without its schema.

    Workers in processes of their own, and connections that users have opened with psycopg alone,
    are not heard.
    """
    found: dict[tuple[str, ...], str] = {}

    def listen(
        connection: sa.Connection, _cursor: Any, statement: str, *_rest: Any
    ) -> None:
        if connection.dialect.name != "postgresql":
            return
        if (names := unqualified(statement)) and names not in found:
            file = sender(sys._getframe())
            if file is not None and not file.startswith(OWNERS):
                found[names] = (
                    f"{file}, {os.environ.get('PYTEST_CURRENT_TEST')}: {statement}"
                )

    sa.event.listen(sa.Engine, "before_cursor_execute", listen)
    yield
    sa.event.remove(sa.Engine, "before_cursor_execute", listen)
    assert not found, f"functions without pg_catalog. before them: {found}"
