"""``TESTS_DIALECT=locking python3 dev.py test …``: tests on PostgreSQL use the base ``Locking``, in
this process and in those that it starts.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slotwise.spi import register_dialect

DIALECT = os.environ.get("TESTS_DIALECT", "")
LOCKING = "slotwise.store.dialects.locking_postgresql:LockingPostgreSQL"
#: A directory with a ``sitecustomize.py``, which Python imports in each process that starts.
_STARTUP = Path(__file__).parent / "startup"

#: Tests that cannot pass with this dialect, each with the reason. None is skipped silently.
NOT_YET = {
    "tests/store/conformance/test_fast_finish.py": "Locking has no fast finish",
    (
        "tests/store/conformance/test_doubt.py"
        "::test_what_is_settled_before_the_connection_breaks_is_told"
    ): "Locking has no fast finish",
    (
        "tests/store/conformance/test_late_together.py::test_rows_with_data_share_a_decision"
    ): "Locking decides late rows one by one",
    "tests/store/test_golden.py": "golden SQL is the built-in dialect's",
}


def pytest_configure() -> None:
    if DIALECT == "locking":
        register_dialect("postgresql", LOCKING)
        paths = [str(_STARTUP), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if DIALECT != "locking":
        return
    for item in items:
        test = item.nodeid.partition("[")[0]
        reason = NOT_YET.get(test) or NOT_YET.get(test.partition("::")[0])
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=f"not with Locking: {reason}"))
