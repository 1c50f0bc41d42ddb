"""Jobs under PostgreSQL's advisory locks, bound from CRON_JOBS, beside programs that take the same
keys.

    python examples/keyed_jobs.py

prints, on a new database:

    lt-credit-service.token_cleanup has the key 1301
    lt-credit-service.sessionPrune has the key 1302
    pruning sessions
    cleaning up tokens

On PostgreSQL, a worker holds a job's key while a slot of it runs. If another program holds the
key, the slot is skipped. SQLite has no advisory locks; there the jobs run without them.
"""

from __future__ import annotations

import threading

from _database import database_url, make_tables

from slotwise import JobContext, JobRegistry
from slotwise.contrib.advisory import bind_cron_jobs, distributed_scheduled
from slotwise.contrib.advisory.gate import AdvisoryGate

SERVICE = "lt-credit-service"
#: As the environment of each process of the service has it.
ENVIRONMENT = {
    "CRON_JOBS": '{"sessionPrune": {"schedule": "* * * * * *", "lockKey": 1302}}'
}

cleaned, pruned = threading.Event(), threading.Event()


@distributed_scheduled(cron="* * * * * *", lock_key=1301, service=SERVICE)
def token_cleanup(ctx: JobContext) -> None:
    """Declared in code, with its schedule and its key."""
    if pruned.wait(30) and not cleaned.is_set():
        print("cleaning up tokens")
        cleaned.set()


def session_prune(ctx: JobContext) -> None:
    """The handler of the entry sessionPrune."""
    if not pruned.is_set():
        print("pruning sessions")
        pruned.set()


class NoGate:
    """For SQLite: without a gate that claims to hold the keys, the worker would refuse to
    start.
    """

    def holds(self, name: str, key: int) -> bool:
        return True

    def __call__(self, ctx: object) -> None: ...


def main() -> None:
    jobs = bind_cron_jobs(
        [session_prune], environ=ENVIRONMENT, service=SERVICE, beside=[token_cleanup]
    )
    for one in jobs:
        print(one.name, "has the key", one.lock_key)
    url = database_url()
    gate = (
        NoGate()
        if url.startswith("sqlite")
        else AdvisoryGate(url, jobs, hold_at_least="100ms")
    )
    registry = JobRegistry(
        jobs=jobs, before_start=[gate], database_url=url, poll_interval="1s"
    )
    make_tables(registry)
    with registry:
        assert pruned.wait(30), "the job of CRON_JOBS has not run"
        assert cleaned.wait(30), "the job of the code has not run"


if __name__ == "__main__":
    main()
