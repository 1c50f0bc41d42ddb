"""The command line. One file per noun; ``main`` is the entry point."""

from __future__ import annotations

from slotwise.cli.entry import main

__all__ = ["main"]
