"""Which tests ``python3 dev.py test`` leaves to ``--all``: beside those with the marker, most
second databases.

Each law and each guarantee is proved on every database. Of other tests, SQLite's form repeats
PostgreSQL's.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

#: How tests call their second database.
SECOND = ("sqlite", "sqlite_url", "sqlite_empty_url")
#: Where tests have two databases.
FOLDERS = (
    "tests/contrib/locks",
    "tests/docs",
    "tests/examples",
    "tests/integration",
    "tests/simulation",
    "tests/store",
)
#: The statements of one database do not repeat those of the other.
ON_BOTH = ("tests/store/test_golden.py",)
LAWS = Path(__file__).parents[2] / "docs" / "proofs.md"


@pytest.hookimpl(tryfirst=True)  # before the markers are looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _repeats_on_the_second_database(item):
            item.add_marker(pytest.mark.extended)


def _repeats_on_the_second_database(item: pytest.Item) -> bool:
    test = item.nodeid.partition("[")[0]
    if (
        not test.startswith(FOLDERS)
        or test.startswith(ON_BOTH)
        or test in tests_of_laws()
    ):
        return False
    params = (
        item.callspec.params.values()
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        else ()
    )
    return any(isinstance(param, str) and param in SECOND for param in params)


@cache
def tests_of_laws() -> frozenset[str]:
    """The tests that the page of laws names: ``file::function``."""
    return frozenset(re.findall(r"`(tests/[\w/]+\.py::\w+)`", LAWS.read_text()))
