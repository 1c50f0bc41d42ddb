"""Whether a worker is alive and ready: judged by its loops, without the database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from slotwise import ConfigurationError
from slotwise.spi import Service, Worker, parse_duration

#: The least time after which a loop counts as stuck, by default: restarts must not make a slow
#: database slower.
SHORTEST: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """The health of one worker, or the worst of several. ``problems``: why it is not alive, or not
    ready.
    """

    is_alive: bool
    is_ready: bool
    problems: tuple[str, ...] = ()


class WorkerHealth:
    """Judges a worker by its loops, without the database.

    A loop is stuck if its current round has lasted for longer than ``stuck_after``; by default two
    leases, at least one minute. Every statement has a deadline, so an absent or slow database
    leaves the worker alive: a restart would not help, and handlers may be running. A worker is
    ready when it has started, does not drain and reaches the database.
    """

    def __init__(
        self,
        worker: Callable[[], Worker | None],
        stuck_after: timedelta | str | None = None,
    ) -> None:
        self._worker = worker
        self._stuck_after = (
            None if stuck_after is None else parse_duration(stuck_after)
        )
        if self._stuck_after is not None and not self._stuck_after:
            raise ConfigurationError("stuck_after must be more than zero")

    def check(self) -> ProbeResult:
        """Return the verdict; a process whose worker has not started, or has stopped, is alive and
        not ready.
        """
        if (worker := self._worker()) is None:
            return ProbeResult(
                is_alive=True,
                is_ready=False,
                problems=("no worker runs in this process",),
            )
        limit = self._stuck_after or max(2 * worker.settings.lease, SHORTEST)
        stuck = [
            problem
            for loop in worker.loops
            if (problem := _problem(loop, worker, limit.total_seconds()))
        ]
        if stuck:
            return ProbeResult(is_alive=False, is_ready=False, problems=tuple(stuck))
        unready = _unready(worker)
        problems = () if unready is None else (unready,)
        return ProbeResult(is_alive=True, is_ready=not problems, problems=problems)


def busy_for(loop: Service) -> float:
    """Return for how many seconds the current round of a loop has lasted; 0 while it sleeps."""
    since = loop.busy_since
    return 0.0 if since is None else max(loop.elapsed() - since, 0.0)


def _problem(loop: Service, worker: Worker, limit: float) -> str | None:
    if not loop.has_started:
        return None
    if (busy := busy_for(loop)) > limit:
        return f"the loop {loop.name} is stuck: its round has lasted for {busy:.0f} s"
    if (
        not worker.is_draining
        and loop.join(timedelta(0))
        and not worker.wait_for_stop(0)
    ):
        return f"the loop {loop.name} has ended"
    return None


def _unready(worker: Worker) -> str | None:
    if worker.is_draining or worker.wait_for_stop(0):
        return "the worker drains"
    if worker.common.is_away:
        return "the database is away"
    return None if worker.poller.has_started else "the worker is starting"
