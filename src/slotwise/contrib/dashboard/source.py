"""The tables that a dashboard shows: opened at the first request, and again once the database is
back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, TypeAlias

from slotwise import Client, DatabaseProblem, JobRegistry, Settings
from slotwise.contrib.dashboard.policies import differences
from slotwise.contrib.dashboard.recent import Recent
from slotwise.contrib.dashboard.renewed import Renewed
from slotwise.contrib.dashboard.shard import shard_of
from slotwise.contrib.reconciliation import Reconciliation, keep, kept
from slotwise.inspect import Inspection, OutcomeTotal
from slotwise.operations import Operations
from slotwise.spi import Definition

logger = logging.getLogger("slotwise.dashboard")

#: Where the tables are: a registry, settings, an address, or what environment and file say.
Where: TypeAlias = JobRegistry | Settings | str | None

#: Statements of a page may take two seconds: a third of the lease, which nobody holds here.
_HEARTBEAT: Final = "2s"
_MISSED: Final = 3
_HOUR: Final = timedelta(hours=1)
#: Workers count an hour again until it has been closed for two hours.
_OPEN_FOR: Final = 2 * _HOUR
#: How long the totals of such an hour are kept, in seconds.
_CLOSED_FOR: Final = 3_600.0
#: How long the shard's name, and a comparison of the code with the rows, are shared, in seconds.
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
        #: Reads of the whole cluster, for all visitors.
        self.renewed = Renewed()
        self._delays = Recent[timedelta | None]()
        self._hours = Recent[list[OutcomeTotal]](_CLOSED_FOR)
        self._differences = Recent[dict[str, str]](_FRESH)
        self._shards = Recent[str | None](_FRESH)
        self._reconciled: Reconciliation | None = None

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

    def replica_delay(self) -> timedelta | None:
        """How far the reads are behind, if they are of a replica; raises what ``inspect`` does."""
        if self._read_from is None:
            return None
        inspect = self.inspect
        return self._delays.get("all", lambda: inspect.database().replica_delay)

    def shard(self) -> str | None:
        """The shard that is shown, of an application with several; raises what ``inspect`` does."""
        reader = self._reader()
        return self._shards.get("all", lambda: shard_of(reader))

    def totals(self, start: datetime) -> list[OutcomeTotal]:
        """The outcomes since an instant: of hours that are closed, as they were read before."""
        inspect = self.inspect
        now = inspect.now()
        closed = _hour_of(now) - _OPEN_FOR
        found = list[OutcomeTotal]()
        hour = _hour_of(start)
        while hour < now:
            read = partial(inspect.outcome_totals, hour, hour + _HOUR)
            found += self._hours.get(hour, read) if hour < closed else read()
            hour += _HOUR
        return added(found)

    def reconciled(self) -> Reconciliation | None:
        """What the newest comparison of any process has found; raises what ``inspect`` does."""
        found, own = kept(self._reader()), self._reconciled
        if found is None or own is None:
            return found or own
        return max(found, own, key=lambda one: one.at)

    def keep(self, found: Reconciliation) -> None:
        """Keep a comparison: for all processes, or, without the right to, for this one."""
        self._reconciled = found
        try:
            keep(self.client(), found)
        except DatabaseProblem as error:
            logger.warning("the comparison is kept in this process alone: %s", error)

    @property
    def inspect(self) -> Inspection:
        """The reads, each under a timeout of two seconds.

        Raises DatabaseProblem, SchemaMissing or SchemaMismatch while the tables cannot be opened.
        """
        return self._reader().inspect

    def _reader(self) -> Client:
        with self._turn:
            if self._reads is None:
                self._reads = self._open(
                    _for_reading(self._settings(), self._read_from)
                )
            return self._reads

    def forget(self) -> None:
        """Read again what is shared for a while."""
        self.renewed.clear()

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


def _hour_of(instant: datetime) -> datetime:
    return instant.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def added(totals: Iterable[OutcomeTotal]) -> list[OutcomeTotal]:
    """Add up totals of several hours by outcome and reason, the most frequent first. The number of
    jobs is that of the hour with the most.
    """
    found = dict[tuple[str, str | None], OutcomeTotal]()
    for one in totals:
        key = one.outcome, one.reason
        known = found.get(key)
        if known is None:
            found[key] = one
            continue
        jobs = max(known.jobs, one.jobs)
        found[key] = replace(known, count=known.count + one.count, jobs=jobs)
    return sorted(found.values(), key=lambda one: -one.count)


def _for_reading(settings: Settings, address: str | None) -> Settings:
    changes = {"database_url": address} if address else {}
    return settings.replace(
        heartbeat_interval=_HEARTBEAT,
        missed_heartbeats_limit=_MISSED,
        reaper_interval=None,
        **changes,
    )
