"""A worker without threads: a test calls the engine's own loops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from types import TracebackType
from typing import ClassVar, Self, TypeAlias, TypeVar

from slotwise import (
    Calendar,
    ClaimLost,
    Client,
    ConfigurationError,
    JobRegistry,
    Settings,
)
from slotwise.inspect import Inspection
from slotwise.operations import Operations, Schema
from slotwise.spi import (
    AttemptOutcome,
    Claim,
    ClaimLostEvent,
    Database,
    Definition,
    Event,
    HandedBack,
    HandedBackEvent,
    Holding,
    Plan,
    Pruned,
    Reaped,
    Runner,
    Settled,
    Succeeded,
    Worker,
    definitions_of,
    parse_duration,
)
from slotwise.testing.clock import ManualClock
from slotwise.testing.foreign_rows import refuse_foreign_rows

#: The event that ends an attempt.
Ended: TypeAlias = Settled | HandedBackEvent | ClaimLostEvent

E = TypeVar("E", bound=Event)

IN_MEMORY = "sqlite://"


class _HeldRunner(Runner):
    """A runner that holds claimed slots and tasks until the test runs them, each to its end."""

    @cached_property
    def waiting(self) -> list[Holding]:
        """Claims that the test has neither run nor ended."""
        return []

    def start(self, held: Iterable[Holding], *, first: bool = False) -> None:
        if self.is_draining:
            super().start(held)  # which hands them back
        else:
            self.waiting.extend(held)

    def run_here(self, holding: Holding) -> None:
        self.waiting.remove(holding)
        super().run_here(holding)

    def end(self, holding: Holding, outcome: AttemptOutcome) -> None:
        """End the attempt with this outcome, without running its handler."""
        if holding in self.waiting:
            self.waiting.remove(holding)
        self.on_end(holding, outcome)


class _HeldWorker(Worker):
    runner_class: ClassVar[type[Runner]] = _HeldRunner
    runner: _HeldRunner


class ManualWorker:
    """A worker that does nothing by itself; each of its loops runs one round when called.

    ``jobs``: a JobRegistry, or jobs and tasks as a registry takes them. ``url``: a database that
    has the tables, or a Database to share with other workers; by default one of its own, in
    memory, tables and all. An address must be that of a test's database: one with live workers, or
    with rows that were made before this process, is refused unless ``foreign_rows``. ``clock``:
    the time of the database and of the workers; by default it stands at 2026-01-01T00:00Z. Workers
    of one database should share it. ``calendars`` are stored in the database, for schedules that
    name them. Further keywords are settings.

    As a context manager it plans its jobs first and closes at the end. Not safe between threads.

    Raises what a registry raises for invalid jobs and settings, and ConfigurationError for a
    database in use.
    """

    def __init__(
        self,
        jobs: JobRegistry | Iterable[object],
        url: str | Database = IN_MEMORY,
        clock: ManualClock | None = None,
        *,
        foreign_rows: bool = False,
        calendars: Iterable[Calendar] = (),
        **settings: object,
    ) -> None:
        if not isinstance(url, str | Database):
            raise ConfigurationError(
                "ManualWorker takes an address or a Database, not a "
                f"{type(url).__name__}: a worker commits its "
                "claims, so it cannot work within a transaction of the test; run "
                "what was captured: "
                "scheduled(registry).run_all"
            )
        application = (
            jobs
            if isinstance(jobs, JobRegistry)
            else _Application(definitions_of(jobs))
        )
        self.clock = clock or ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
        #: All events of this worker so far.
        self.events: list[Event] = []
        self._settings = _settings(application.settings, url, settings)
        self._owns_database = not isinstance(url, Database)
        self._database = (
            url
            if isinstance(url, Database)
            else _opened(self._settings, foreign_rows=foreign_rows)
        )
        self._crashed = self._loop_runs = False
        self._worker = _HeldWorker(
            self._settings,
            application.definitions,
            database=self._database,
            hooks=application.hooks,
            client=Client(lambda: self._worker.store),
            clock=self.clock,
        )
        self.listen(self.events.append)
        self.store = self._worker.store
        #: Schedules one-time tasks.
        self.client = Client(lambda: self.store)
        self.inspect = Inspection(lambda: self.store)
        for calendar in calendars:
            self._store_calendar(calendar)

    @staticmethod
    def database_in_memory() -> Database:
        """Return a new SQLite database in memory, with the tables, for workers to share."""
        database = Database(Settings(database_url=IN_MEMORY))
        Schema.create_in(database)
        return database

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Call ``listener`` with each later event."""
        self._worker.listeners.add(listener)

    @property
    def operations(self) -> Operations:
        """As ``registry.operations``."""
        return self.client.operations

    @property
    def name(self) -> str:
        """The worker's name, as in ``picked_by``."""
        return self._worker.name

    @property
    def held(self) -> list[Claim]:
        """The claims that this worker believes it holds, the oldest first."""
        return [holding.claim for holding in self._worker.active_claims]

    @property
    def waiting(self) -> list[Claim]:
        """Those of them whose attempts have neither begun nor ended."""
        return [
            holding.claim
            for holding in self._runner.waiting
            if not holding.started and not holding.ended
        ]

    def is_lost(self, claim: Claim) -> bool:
        """Whether this worker must assume that it has lost the claim."""
        holding = self._worker.active_claims.get(claim)
        return holding is None or holding.lost

    def cancel_reason(self, claim: Claim) -> str | None:
        """Why the claim's attempt was asked to stop; None: it was not."""
        holding = self._worker.active_claims.get(claim)
        return None if holding is None else holding.stop_reason

    # -- time -------------------------------------------------------------------------------------

    def tick(self, by: timedelta | str) -> datetime:
        """Advance the clock, for every worker that shares it; return the new time."""
        return self.clock.tick(parse_duration(by))

    # -- rounds -----------------------------------------------------------------------------------

    def plan(self, revision: str | None = None) -> list[Plan]:
        """Insert or re-plan the jobs' rows, as a starting worker does. ``revision`` orders
        deploys.
        """
        self._check_alive()
        return self._worker.sign_in.plan(revision)

    def poll(self, limit: int | None = None) -> list[Claim]:
        """End the pauses whose time has come, and claim due rows, up to ``limit`` and the free
        capacity; return the new claims, which now wait.
        """
        self._check_alive()
        self._end_pauses()
        before = len(self._runner.waiting)
        if limit is None:
            self._worker.poller.run_once()
        elif (free := min(limit, self._runner.free())) > 0:
            self._worker.poller.claim(free)
        return [
            holding.claim
            for holding in self._runner.waiting[before:]
            if not holding.ended
        ]

    def run_due(self) -> list[Ended]:
        """Claim, run and settle until nothing is due; return the end of each attempt, in order.

        An exception of a handler is an outcome, as in a worker: see ``outcome`` and ``error``.
        """
        self._check_alive()
        self._end_pauses()
        mark = len(self.events)
        while True:
            more = self._worker.poller.run_once() == timedelta(0)
            waiting = self.waiting
            for claim in waiting:
                self.run(claim)
            self.settle()
            if not more and not waiting:
                return self._since(mark, Settled, HandedBackEvent, ClaimLostEvent)

    def _end_pauses(self) -> None:
        while self._worker.pause_ends.run_once() == timedelta(0):
            pass

    def run(self, claim: Claim) -> None:
        """Run the handler of a waiting claim to its end; ``settle`` then writes the outcome."""
        if not self._loop_runs:  # the real one, on which ``async def`` handlers run
            self._loop_runs = True
            self._worker.loop.start()
        self._runner.run_here(self._holding(claim))

    def begin(self, claim: Claim) -> bool:
        """Start an attempt without its handler. False: it may no longer start, and the claim is
        handed back.
        """
        return self._begin(self._holding(claim))

    def finish(self, claim: Claim, outcome: AttemptOutcome | None = None) -> bool:
        """End an attempt with ``outcome`` (success) without running its handler; begins it if need
        be.

        False if it could no longer start. ``settle`` then writes what happened.
        """
        holding = self._holding(claim)
        outcome = Succeeded() if outcome is None else outcome
        if (
            not holding.started
            and not isinstance(outcome, HandedBack)
            and not self._begin(holding)
        ):
            return False
        self._runner.end(holding, outcome)
        return True

    def settle(self) -> list[Ended]:
        """Write the outcomes gathered so far; return the end of each attempt."""
        self._check_alive()
        mark = len(self.events)
        self._worker.settler.flush()
        return self._since(mark, Settled, HandedBackEvent, ClaimLostEvent)

    def beat(self) -> list[Claim]:
        """Renew all held claims; return those that are lost."""
        self._check_alive()
        self._worker.heartbeat.run_once()
        return [
            holding.claim for holding in self._worker.active_claims if holding.lost
        ]

    def watch(self) -> list[Claim]:
        """Check leases and timeouts, without the database; return the claims that expired."""
        self._check_alive()
        self._worker.lease_watch.run_once()
        return [
            holding.claim for holding in self._worker.active_claims if holding.lost
        ]

    def reap(self) -> list[Reaped]:
        """Take over the held rows whose holders are dead, once."""
        self._check_alive()
        mark = len(self.events)
        self._worker.reaper.run_once()
        return self._since(mark, Reaped)

    def prune(self) -> Pruned | None:
        """Delete old rows of the ledger if it is this worker's turn; return what was deleted, if
        anything.
        """
        self._check_alive()
        mark = len(self.events)
        self._worker.pruning.run_once()
        while self._worker.pruning.is_walking:
            self._worker.pruning.run_once()
        found = self._since(mark, Pruned)
        return found[0] if found else None

    # -- ends -------------------------------------------------------------------------------------

    def drain(self) -> list[Ended]:
        """Stop claiming, hand back waiting claims, settle ended ones; started handlers
        continue.
        """
        self._check_alive()
        self._runner.is_draining = True
        for claim in self.waiting:
            self.begin(claim)
        return self.settle()

    def crash(self) -> None:
        """End like a killed process: the rows stay held, and every further call raises
        RuntimeError.
        """
        self._crashed = True

    def close(self) -> None:
        """Free the event loop and the database connection; rows stay as they are."""
        if self._loop_runs:
            self._worker.loop.stop()
        if self._owns_database:
            self._database.close()

    def __enter__(self) -> Self:
        self.plan()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- within -----------------------------------------------------------------------------------

    def _store_calendar(self, calendar: Calendar) -> None:
        self.operations.calendars.change(
            calendar.name, lambda before: calendar, "calendar_add"
        )

    def _begin(self, holding: Holding) -> bool:
        refused = self._runner.begin(holding)
        if refused is not None:
            self._runner.end(holding, refused)
        return refused is None

    @property
    def _runner(self) -> _HeldRunner:
        return self._worker.runner

    def _holding(self, claim: Claim) -> Holding:
        self._check_alive()
        holding = self._worker.active_claims.get(claim)
        if holding is None:
            raise ClaimLost(
                f"{self.name} does not hold {claim.key} under token {claim.token} (any more)"
            )
        return holding

    def _check_alive(self) -> None:
        if self._crashed:
            raise RuntimeError(f"{self.name} has crashed; make another worker")

    def _since(self, mark: int, *kinds: type[E]) -> list[E]:
        return [event for event in self.events[mark:] if isinstance(event, kinds)]


@dataclass(frozen=True)
class _Application:
    """Jobs and tasks without a registry."""

    definitions: Mapping[str, Definition]
    settings = Settings()
    hooks = None


def _opened(settings: Settings, *, foreign_rows: bool) -> Database:
    database = Database(settings)
    if settings.database_url == IN_MEMORY:
        Schema.create_in(database)
    elif not foreign_rows:
        try:
            refuse_foreign_rows(database)
        except BaseException:
            database.close()
            raise
    return database


def _settings(
    base: Settings, url: str | Database, given: Mapping[str, object]
) -> Settings:
    """The settings, without environment and file: a test names all that differs from the
    defaults.
    """
    if isinstance(url, Database):
        place = url.settings
        given = {"table_prefix": place.table_prefix, "schema": place.schema, **given}
        url = place.database_url or IN_MEMORY
    return base.replace(database_url=url, **given)
