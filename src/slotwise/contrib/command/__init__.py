"""Jobs that run a command: a line for the shell, or a program with its arguments."""

from __future__ import annotations

from slotwise.contrib.command.invocation import Invocation
from slotwise.contrib.command.job import CommandJob

__all__ = ["CommandJob", "Invocation"]
