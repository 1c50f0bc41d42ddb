"""Which tests ``python3 dev.py test`` leaves to ``--all``: beside those with the marker, most second databases.

Each law and each guarantee is proved on every database. Of other tests, SQLite's form repeats PostgreSQL's.
"""

from __future__ import annotations

from pathlib import PurePath

import pytest

#: How tests call their second database.
SECOND = ("sqlite", "sqlite_url", "sqlite_empty_url")
#: Where tests have two databases.
FOLDERS = ("tests/store", "tests/integration", "tests/docs", "tests/examples", "tests/simulation")
#: Tests of laws and guarantees, which each database proves by itself.
ON_BOTH = frozenset({
    "test_claim", "test_detached", "test_fast_finish", "test_finish", "test_golden", "test_guard", "test_heartbeat",
    "test_neighbours", "test_retention", "test_settle", "test_take_over", "test_tasks",
})  # fmt: skip


@pytest.hookimpl(tryfirst=True)  # before the markers are looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _is_on_the_second_database(item):
            item.add_marker(pytest.mark.extended)


def _is_on_the_second_database(item: pytest.Item) -> bool:
    path = PurePath(item.nodeid.partition("::")[0])
    if path.stem in ON_BOTH or not path.as_posix().startswith(FOLDERS):
        return False
    params = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    return any(isinstance(param, str) and param in SECOND for param in params)
