"""The tables that a dashboard shows: opened at the first request, and again once the database is
back.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Final, TypeAlias

from slotwise import Client, JobRegistry, Settings
from slotwise.contrib.dashboard.policies import differences
from slotwise.contrib.dashboard.recent import Recent
from slotwise.contrib.dashboard.reconciliation import Reconciliation
from slotwise.inspect import Inspection
from slotwise.operations import Operations
from slotwise.spi import Definition

#: Where the tables are: a registry, settings, an address, or what environment and file say.
Where: TypeAlias = JobRegistry | Settings | str | None

#: Statements of a page may take two seconds: a third of the lease, which nobody holds here.
_HEARTBEAT: Final = "2s"
_MISSED: Final = 3
#: How long a comparison of the code with the rows is shared, in seconds.
_FRESH: Final = 30.0


class Source:
    """Reads and operations of one installation. Safe to share between threads."""

    def __init__(self, where: Where, read_from: str | None = None) -> None:
        """``read_from``: the address of a replica for the reads."""
        self._where = where
        self._read_from = read_from
        self._opened = ExitStack()
        self._turn = threading.Lock()
        self._reads: Client | None = None
        self._writes: Client | None = None
        self._differences = Recent[dict[str, str]](_FRESH)
        #: What the last comparison of this process has found.
        self.reconciled: Reconciliation | None = None

    @property
    def registry(self) -> JobRegistry | None:
        """The application's registry, if there is one."""
        return self._where if isinstance(self._where, JobRegistry) else None

    def definition(self, name: str) -> Definition | None:
        """What the application declares of a job or task, if there is an application."""
        return None if self.registry is None else self.registry.definitions.get(name)

    def difference(self, name: str) -> str | None:
        """How a job's row differs from the code, in a sentence; raises what ``inspect`` does."""
        registry = self.registry
        if registry is None:
            return None
        found = self._differences.get("all", lambda: differences(registry))
        return found.get(name)

    @property
    def inspect(self) -> Inspection:
        """The reads, each under a timeout of two seconds.

        Raises DatabaseProblem, SchemaMissing or SchemaMismatch while the tables cannot be opened.
        """
        with self._turn:
            if self._reads is None:
                self._reads = self._open(_for_reading(self._settings(), self._read_from))
            return self._reads.inspect

    def client(self) -> Client:
        """The client for operations on tasks; raises what ``inspect`` does."""
        with self._turn:
            if self._writes is None:
                self._writes = self._open(self._settings())
            return self._writes

    def operations(self, author: str) -> Operations:
        """The operations on jobs, in the name of a visitor; raises what ``inspect`` does."""
        return self.client().operations.by(author)

    def close(self) -> None:
        """Close the connections; the next read opens them again."""
        with self._turn:
            self._opened.close()
            self._reads = self._writes = None

    def _settings(self) -> Settings:
        if isinstance(self._where, JobRegistry):
            return self._where.settings
        if isinstance(self._where, str):
            return Settings.load(database_url=self._where)
        return self._where or Settings.load()

    def _open(self, settings: Settings) -> Client:
        opening = Client.open(settings, application=self.registry)
        return self._opened.enter_context(opening)


def _for_reading(settings: Settings, address: str | None) -> Settings:
    changes = {"database_url": address} if address else {}
    return settings.replace(
        heartbeat_interval=_HEARTBEAT,
        missed_heartbeats_limit=_MISSED,
        reaper_interval=None,
        **changes,
    )
