"""The command line, with ``main`` as its entry point: each file has the commands about one thing.

It may import every other room; only ``__main__`` imports it.
"""

from __future__ import annotations

from slotwise.cli.entry import main

__all__ = ["main"]
