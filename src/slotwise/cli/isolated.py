"""The child process that runs one attempt of a job with ``isolation="process"``; only a worker
starts it.
"""

from __future__ import annotations

import sys

from slotwise import Settings
from slotwise.cli.shared.application import load_registry
from slotwise.contrib.isolation.child import run_isolated
from slotwise.contrib.logging import configure, keep_one_console


def prepare(settings: Settings) -> None:
    """Write log lines as the worker does."""
    handler = configure(settings.log_format, settings.log_level)
    keep_one_console(handler, settings.log_level)


if __name__ == "__main__":
    run_isolated(int(sys.argv[1]), load_registry, prepare)
