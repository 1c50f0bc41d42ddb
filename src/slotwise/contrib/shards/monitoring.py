"""Health and figures of the workers of all shards of a process."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from slotwise.contrib.metrics.figures import Snapshot, Value, combined
from slotwise.contrib.metrics.health import ProbeResult
from slotwise.contrib.metrics.meter import Metrics
from slotwise.contrib.shards.fleet import Fleet, Member, ShardState
from slotwise.spi import Worker


class FleetMetrics:
    """The figures of all shards, added up, and one verdict.

    The process is alive while no loop of any shard is stuck. It is ready while one shard runs: a
    shard that is down stops only itself, and is named in the problems.
    """

    def __init__(
        self, fleet: Fleet, *, max_names: int, stuck_after: timedelta | None
    ) -> None:
        self._fleet = fleet
        self._metrics = {
            member.name: Metrics(
                member.registry,
                max_names=max_names,
                stuck_after=stuck_after,
                worker=_worker_of(member),
            )
            for member in fleet.members
        }

    def check(self) -> ProbeResult:
        """Return whether the process is alive and ready; asks no database."""
        problems: list[str] = []
        is_alive = True
        is_ready = False
        for member in self._fleet.members:
            if (problem := member.problem) is not None:
                problems.append(problem)
                continue
            found = self._metrics[member.name].check()
            is_alive = is_alive and found.is_alive
            is_ready = is_ready or found.is_ready
            problems += [f"shard {member.name}: {one}" for one in found.problems]
        return ProbeResult(
            is_alive=is_alive,
            is_ready=is_alive and is_ready,
            problems=tuple(problems),
        )

    def snapshot(self) -> Snapshot:
        """Return the figures of all shards whose database answers, added up, and which these
        are.
        """
        running = {
            member.name: member.state is ShardState.RUNNING
            for member in self._fleet.members
        }
        found = combined(
            self._metrics[name].snapshot() for name, runs in running.items() if runs
        )
        shards: dict[tuple[str, ...], Value] = {
            (name,): float(runs) for name, runs in running.items()
        }
        return {**found, "slotwise_shard_running": shards}


def _worker_of(member: Member) -> Callable[[], Worker | None]:
    return lambda: member.worker
