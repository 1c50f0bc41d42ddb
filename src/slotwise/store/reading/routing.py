"""Why no live worker takes a due row."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from slotwise.model.vocabulary import ListedState, WorkerState
from slotwise.store.reading.workers import WorkerInfo

NO_WORKER_LIVES = "no worker is alive"
#: The states of workers that claim.
_CLAIMING = (WorkerState.RUNNING, WorkerState.SLOW, WorkerState.HANGING)
#: Why no worker claims a one-time row whose name is a job's.
UNDER_A_JOB = (
    "it is a one-time row under the name of a job, which only its schedule runs; see: "
    "slotwise tasks cancel"
)


def state_of_stuck(reason: str) -> ListedState:
    """Return the state of a due row that no worker can take, from the reason that ``obstacle``
    returns.
    """
    return (
        ListedState.NO_LIVE_WORKER
        if reason == NO_WORKER_LIVES
        else ListedState.UNROUTABLE
    )


def obstacle(
    name: str, runs_on: Collection[str], workers: Sequence[WorkerInfo]
) -> str | None:
    """Return why no live worker takes this task, or None. For a one-time task only workers know
    the tags.
    """
    live = [worker for worker in workers if worker.live and worker.state in _CLAIMING]
    if not live:
        return NO_WORKER_LIVES
    knowing = [worker for worker in live if name in worker.tasks]
    if not knowing:
        return "no live worker knows it"
    tags = set(runs_on)
    for worker in knowing:
        if tags <= set(worker.tags) and name not in worker.passed_over:
            return None
    wanted = sorted(
        tags.union(*(worker.passed_over.get(name, ()) for worker in knowing))
    )
    return f"no live worker that knows it carries {' and '.join(wanted)}"
