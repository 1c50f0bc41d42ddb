"""``TESTS_DIALECT=locking python3 dev.py test …``: tests on PostgreSQL use the base ``Locking``, in
this process and in those that it starts. ``TESTS_DIALECT=mariadb python3 dev.py test tests/store``:
tests that run on each kind of database run on MariaDB.
"""

from __future__ import annotations

import os
from pathlib import Path

import psycopg
import pytest

from slotwise.spi import register_dialect

DIALECT = os.environ.get("TESTS_DIALECT", "")
LOCKING = "tests.kit.startup.locking_postgresql:LockingPostgreSQL"
#: The kinds of databases that a test of a store runs on.
KINDS = ["mysql"] if DIALECT == "mariadb" else ["postgresql", "sqlite"]
#: A directory with a ``sitecustomize.py``, which Python imports in each process that starts.
_STARTUP = Path(__file__).parent / "startup"

#: Tests of what only the built-in dialect of PostgreSQL has, each with what that is. The names
#: begin so; all other tests run with either.
BUILT_IN_ONLY = {
    "tests/store/test_golden.py": "the text of its statements",
    "tests/store/test_explain": "the plans of its statements",
    "tests/store/test_walks.py": "the modules that its one-statement paths enter",
    "tests/store/test_slots_are_due.py": "a claim of tasks that tells of slots",
    "tests/store/conformance/test_fast_finish.py": "a slot that ends in one statement",
    "tests/store/conformance/test_doubt.py::test_what_is_settled_before_the": "the same",
    "tests/faults/test_tasks.py::test_a_crash_loses_no_give_up_task_that_has_not_started[all": (
        "claims of more tasks than threads are free, which follow from quick claims"
    ),
    "tests/store/test_roles.py::test_an_enqueuer_may_not[schedule_many": (
        "inserts of new ids that need the right to update"
    ),
    "tests/integration/test_wakeup_listener.py": "notifications",
    "tests/integration/test_pipelined_notify.py": "notifications",
    "tests/integration/test_client_joins.py::test_each_call_is_one": "calls of one statement",
    "tests/integration/test_client_joins.py::test_a_chunk_with_ids": "the same",
    "tests/integration/test_lost_replies.py::test_without_an_id": "calls of one statement",
    "tests/integration/test_other_installation.py::test_what_it_costs": "calls of one statement",
    "tests/integration/test_every_connection.py::test_every_call_joins[psycopg2": "COPY",
    "tests/integration/test_every_connection.py::test_every_call_joins[asyncpg": "COPY",
    "tests/integration/test_every_connection.py::test_every_call_joins_a_session_with_other_"
    "settings[asyncpg": "COPY",
    "tests/integration/test_grants.py::test_the_recipe_for_tenants": "rights without receipts",
    "tests/integration/test_prepared_statements.py": "statements that the server keeps",
}

#: Tests that do not run on MariaDB, each with what they need; they begin so.
NOT_YET: dict[str, str] = {
    "tests/store/conformance/test_queue.py::test_a_task_under_any_id_can_be_named[mysql-id3": (
        "ids of more than 250 characters"
    ),
}


def grant_receipts(owner: psycopg.Connection, role: str) -> None:
    """Let a role that writes tasks write receipts, which PostgreSQL keeps by itself."""
    if DIALECT == "locking":
        owner.execute(f"GRANT INSERT ON scheduled_receipts TO {role}".encode())


def pytest_configure() -> None:
    if DIALECT == "locking":
        register_dialect("postgresql", LOCKING)
        paths = [str(_STARTUP), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    left_out = {"locking": BUILT_IN_ONLY, "mariadb": NOT_YET}.get(DIALECT)
    if left_out is None:
        return
    others = [item for item in items if item.nodeid.startswith(tuple(left_out))]
    if DIALECT == "mariadb":
        others += [item for item in items if not _runs_on_mariadb(item)]
    left = set(others)
    items[:] = [item for item in items if item not in left]
    config.hook.pytest_deselected(items=others)


def _runs_on_mariadb(item: pytest.Item) -> bool:
    return "database_kind" in getattr(item, "fixturenames", ())
