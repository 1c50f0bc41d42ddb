"""In processes that tests start: see ``tests/kit/dialect.py``."""

import os

# Not in a process of pytest itself, which imports slotwise later.
if (
    os.environ.get("TESTS_DIALECT") == "locking"
    and "PYTEST_CURRENT_TEST" in os.environ
):
    try:
        from slotwise.spi import register_dialect
    except ImportError:  # a Python of its own, without slotwise
        pass
    else:
        register_dialect(
            "postgresql",
            "locking_postgresql:LockingPostgreSQL",
        )
