"""Commands that another distribution adds to ``slotwise``, by the entry points
``slotwise.commands``.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import click

if TYPE_CHECKING:
    from slotwise.client.client import Client
    from slotwise.client.inspection import Inspection
    from slotwise.registry.registry import JobRegistry
    from slotwise.settings.settings import Settings


class Section(StrEnum):
    """Where ``slotwise --help`` lists a command: what people see, operate, time or set up."""

    SEE = "See"
    OPERATE = "Operate"
    TIME = "Time"
    SET_UP = "Set up"
    OTHER = "Other"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginCommand:
    """A click command or group, with its place in ``slotwise --help``.

    The entry point's name is the command's. A plain click command is listed under "Other".
    """

    command: click.Command
    section: Section = Section.OTHER


class CommandLine(Protocol):
    """The options before or after a command; ``click.pass_obj`` passes it to a plug-in's command.

    A plug-in's command has ``--app``, ``--database-url`` and the others by itself. What it returns
    is the exit status if it is a number; an error of slotwise is printed as one line.
    """

    @property
    def json(self) -> bool:
        """Whether the output is to be JSON."""

    def settings(self) -> Settings:
        """Return the settings of the command line, the environment and the settings file."""

    def registry(self) -> JobRegistry:
        """Import the application, and return its registry. Raises ConfigurationError."""

    def client(self) -> AbstractContextManager[Client]:
        """Open the tables; ``client.inspect`` reads, ``client.operations`` changes.

        Raises DatabaseProblem, SchemaMissing or SchemaMismatch.
        """

    def inspection(self) -> AbstractContextManager[Inspection]:
        """Open the tables for reading; raises what ``client`` does."""
