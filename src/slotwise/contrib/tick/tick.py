"""A worker that ends when nothing is due, or when its time is up.

It is an ordinary worker: it plans, claims, renews, settles, reaps and drains under the same laws.
So two ticks at once are two workers, and a tick that is killed is a dead worker: once its leases
have expired, the next tick takes its rows over.

Races:

- A row comes due between the last look and the drain: the poller may claim it, and the drain waits
  for its handler, or hands it back. Otherwise it is due, and ``until`` of the answer has passed.
- A claim is committed, and its reply is on its way: the row is held by this process, so it stays.
- Another tick dies after the last look: ``until`` is at most the end of its leases.
- The clock that calls is ahead of the database's: what is due within ``early`` is waited for.
- The database does not answer: the time is up, and no tick waits for longer.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Protocol, runtime_checkable

import sqlalchemy as sa

from slotwise import (
    ConfigurationError,
    DatabaseProblem,
    DatabaseUnreachable,
    JobCancelled,
    JobRegistry,
)
from slotwise.contrib.processes.pruning import prune_for
from slotwise.contrib.tick.look import Leave, Look, next_step
from slotwise.inspect import Value
from slotwise.spi import (
    ClaimLostEvent,
    Event,
    HandedBackEvent,
    HandlerStarted,
    Settled,
    describe_error,
    elapsed,
    format_duration,
    is_transient,
    parse_duration,
)

logger = logging.getLogger("slotwise.tick")

#: For how long a tick starts what is due: an external clock often calls once a minute.
BUDGET: Final = timedelta(seconds=50)
#: How long it waits for what is about to be due. Reasoned: more than well-kept clocks differ.
EARLY: Final = timedelta(seconds=2)
#: A reaper needs three looks, a heartbeat interval apart, to find a holder dead.
LOOKS: Final = 3
#: How long a tick prunes the ledger at most; what is left waits for the next one.
PRUNE_FOR: Final = timedelta(seconds=10)
#: Why its worker has ended, in the history of workers.
REASON: Final = "tick"
_SNAPSHOT: Final = sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
#: How often it checks whether its handlers have ended, in seconds.
STEP: Final = 0.02


class TickState(StrEnum):
    """Why a tick has ended: nothing was due; its time was up, and more was due; it was asked to
    stop; or another one runs in this process.
    """

    IDLE = "idle"
    MORE = "more"
    STOPPED = "stopped"
    BUSY = "busy"


@runtime_checkable
class WorkSource(Protocol):
    """A listener that brings work of its own, such as events that are to be given out."""

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing left to bring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TickResult(Value):
    """What a tick came to.

    ``until``: when the next tick is to come at the latest, by the database's clock. It has passed
    if more is due, and is None if nothing is known to come. ``ran``: by job or task, how many
    attempts ended with which outcome. ``unfinished``: how many handlers did not stop, or outcomes
    could not be written. ``took`` is the duration.
    """

    state: TickState
    until: datetime | None = None
    ran: Mapping[str, Mapping[str, int]]
    unfinished: int = 0
    took: timedelta = timedelta(0)
    #: From now until ``until``, by this process's clock.
    rest: timedelta | None = field(default=None, repr=False)


class Tick:
    """Run what is due with a worker of ``registry``, once, for ``budget`` at most.

    After ``budget`` nothing starts; what runs then may finish within ``shutdown_grace``, as in the
    drain of any worker. It waits for what is due within ``early``: the caller's clock may be
    ahead. ``host_loop`` runs the ``async def`` handlers; ``born``: see ``registry.make_worker``.
    ``rests``: the process ticks again by itself, so its end is no news to others, but its first
    claim is.

    Raises ConfigurationError for a budget in which no lost row could be taken over, and what
    ``registry.make_worker`` raises.
    """

    def __init__(
        self,
        registry: JobRegistry,
        *,
        budget: timedelta | str = BUDGET,
        early: timedelta | str = EARLY,
        host_loop: asyncio.AbstractEventLoop | None = None,
        born: float | None = None,
        rests: bool = False,
    ) -> None:
        self._budget = parse_duration(budget)
        self._early = parse_duration(early)
        check_budget(registry, self._budget)
        self.worker = registry.make_worker(host_loop=host_loop, born=born)
        self._inspect = registry.inspect
        #: Those that bring work of their own, such as events, say whether they have any left.
        listeners: Iterable[object] = registry.hooks.listeners
        self._sources = [one for one in listeners if isinstance(one, WorkSource)]
        self._rests = rests
        self._ran = Counter[tuple[str, str]]()
        self._has_told = False
        #: When the next tick is to come, in elapsed seconds.
        self._rest_until: float | None = None
        self._asked = threading.Event()
        self.worker.listeners.add(self._count)

    def run(self, *, ending: bool = False) -> TickResult:
        """Run what is due, and drain. ``ending``: the caller ends the process right after this.

        Raises what a worker's start raises, DatabaseUnreachable if it could not start within the
        budget, and JobCancelled if a stop was requested before it had started.
        """
        worker = self.worker
        began = elapsed()
        limit = threading.Timer(
            self._budget.total_seconds(), worker.request_stop, (REASON,)
        )
        limit.daemon = True
        limit.start()
        left: Leave | None = None
        try:
            worker.start()
            if not worker.poller.has_started:
                raise self._not_started()
            left = self._stay()
        finally:
            limit.cancel()
            worker.wakes_others = left is None or not self._rests
            if worker.poller.has_started:
                worker.request_stop(REASON)
                worker.stop(ending=ending)
        if not worker.unfinished and left is not None:
            rest = self._budget - timedelta(seconds=elapsed() - began)
            prune_for(worker, min(PRUNE_FOR, rest), self._asked)
        return TickResult(
            state=self._state(left),
            until=self._now() if left is None else left.until,
            ran=self._by_name(),
            unfinished=worker.unfinished,
            took=timedelta(seconds=elapsed() - began),
            rest=self._rest_left(),
        )

    def stop(self, reason: str | None = None) -> None:
        """Ask it to drain, from any thread; a second call cancels what runs."""
        if self._asked.is_set():
            self.worker.cancel()
        self._asked.set()
        self.worker.request_stop(reason)

    def _not_started(self) -> JobCancelled | DatabaseUnreachable:
        if self._asked.is_set():
            return JobCancelled("the tick was asked to stop before it had started")
        return DatabaseUnreachable(
            f"the tick could not start within {format_duration(self._budget)}: the database "
            "does not answer, or rows stayed locked; the log has the reason"
        )

    def _state(self, left: Leave | None) -> TickState:
        if left is not None:
            return TickState.IDLE
        return TickState.STOPPED if self._asked.is_set() else TickState.MORE

    def _rest_left(self) -> timedelta | None:
        if self._rest_until is None:
            return None
        return timedelta(seconds=self._rest_until - elapsed())

    def _now(self) -> datetime | None:
        try:
            return self._inspect.now()
        except DatabaseProblem:
            return None

    # -- until nothing is due ---------------------------------------------------------------------

    def _stay(self) -> Leave | None:
        """Return when the next tick is to come; None if a stop or the end of the time came first.

        While the database is away, it stays.
        """
        worker = self.worker
        patience = min(worker.common.interval, worker.reaper.interval) / 4
        pause = timedelta(0)
        while not worker.wait_for_stop(pause.total_seconds()):
            pause = patience
            is_busy = not worker.active_claims.wait_empty(STEP)
            if is_busy or not all(one.is_idle for one in self._sources):
                pause = timedelta(0)
                continue
            asked = elapsed()
            try:
                look = self._look()
            except Exception as error:
                if not is_transient(error):
                    raise
                logger.warning("the tick looks again: %s", describe_error(error))
                continue
            step = next_step(
                look, me=worker.name, early=self._early, patience=patience
            )
            if isinstance(step, Leave):
                if step.until is not None:
                    left = (step.until - look.now).total_seconds()
                    self._rest_until = asked + left
                return step
            pause = step.pause
        return None

    def _look(self) -> Look:
        """Read what is due, and who holds what, in one snapshot: between two, a row that was held
        may be settled, or one that was due may be claimed, and neither would show it.

        Pauses are read before: one that ends meanwhile has an end that has passed.
        """
        worker = self.worker
        store = worker.store
        terms = worker.poller.planner.terms
        names = sorted(worker.definitions)
        ends = [one.until for one in self._inspect.pauses() if one.until is not None]
        with store.transaction() as connection:
            if (
                connection.dialect.name == "postgresql"
            ):  # other databases do so by default
                connection.execute(_SNAPSHOT)
            now = store.dialect.now(connection)
            due, _ = store.dialect.next_due(connection, terms.names, terms.tasks)
            _, held = store.dialect.silent_rows(connection, names)
        return Look(now, due, held, ends)

    # -- what ran ---------------------------------------------------------------------------------

    def _count(self, event: Event) -> None:
        if isinstance(event, HandlerStarted) and self._rests and not self._has_told:
            self._has_told = True
            self.worker.database.wake_ups.tell(event.job)
        if isinstance(event, Settled | HandedBackEvent | ClaimLostEvent):
            self._ran[event.job, str(event.outcome)] += 1

    def _by_name(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for (name, outcome), count in sorted(self._ran.items()):
            found.setdefault(name, {})[outcome] = count
        return found


def check_budget(registry: JobRegistry, budget: timedelta) -> None:
    """Raise ConfigurationError for a budget in which no lost row could be taken over."""
    interval = registry.settings.heartbeat_interval
    if budget < LOOKS * interval:
        raise ConfigurationError(
            f"a tick of {format_duration(budget)} is too short to take over what a dead one held: "
            f"allow at least {LOOKS} heartbeat intervals, {format_duration(LOOKS * interval)}, or "
            "set a shorter heartbeat_interval"
        )
