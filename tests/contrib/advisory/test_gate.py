"""While a slot of a job runs, the worker holds the job's key or lock, on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.contrib.locks.servers import eventually
from tests.contrib.locks.shedlock import ShedLockSQL
from tests.faults.proxy import Proxy
from tests.integration.shell import Shell
from tests.integration.test_pooler import pgbouncer

from slotwise import (
    ConfigurationError,
    Every,
    InvalidJob,
    InvalidSetting,
    JobContext,
    JobRegistry,
    job,
)
from slotwise.cli.shared import exits
from slotwise.contrib.advisory import KeyedJob, distributed_scheduled, parse_cron_jobs
from slotwise.contrib.advisory import gate as gate_module
from slotwise.contrib.advisory.gate import AdvisoryGate
from slotwise.contrib.locks.gate import LockGate
from slotwise.locks import LockUnavailable, SQLLocks, counts
from slotwise.spi import Event, elapsed
from slotwise.testing import ManualWorker

KEY = 5101
HOUR = timedelta(hours=1)


@job(name="plain", schedule=Every("1h"))
def plain(ctx: JobContext) -> None: ...


def keyed(name: str, key: int) -> KeyedJob:
    return distributed_scheduled(cron="* * * * *", lock_key=key, name=name)(
        lambda ctx: None
    )


@contextmanager
def worker(
    gate: object, handler: Callable[[JobContext], object], **options: object
) -> Iterator[ManualWorker]:
    """A worker with one job, ``cleanup``, whose slot is due."""
    declared = job(name="cleanup", schedule=Every("1h"), **options)(handler)  # type: ignore[arg-type]
    with ManualWorker(JobRegistry(jobs=[declared], before_start=[gate])) as found:
        found.tick("1h")
        yield found


def outcome(events: list[Event]) -> tuple[object, object]:
    """The outcome and reason of the slot that has ended."""
    (event,) = (event for event in events if hasattr(event, "outcome"))
    return event.outcome, getattr(event, "reason", None)


@pytest.fixture
def other(pg_empty_url: str) -> Iterator[psycopg.Connection]:
    """A session of another program in the same database."""
    with psycopg.connect(pg_empty_url, autocommit=True) as connection:
        yield connection


def take(connection: psycopg.Connection, key: int = KEY) -> bool:
    """The guideline's statement."""
    row = connection.execute("SELECT pg_try_advisory_lock(%s)", (key,)).fetchone()
    return bool(row and row[0])


def give_back(connection: psycopg.Connection, key: int = KEY) -> None:
    connection.execute("SELECT pg_advisory_unlock(%s)", (key,))


def test_the_key_is_held_while_the_handler_runs(
    pg_empty_url: str, other: psycopg.Connection
) -> None:
    """Another program does not get it meanwhile, and gets it right after."""
    got: list[bool] = []
    gate = AdvisoryGate(pg_empty_url, {"cleanup": KEY})
    with worker(gate, lambda ctx: got.append(take(other))) as found:
        assert outcome(found.run_due()) == ("succeeded", None)
    assert got == [False]
    assert take(other)


def test_a_key_that_is_held_skips_the_slot(
    pg_empty_url: str, other: psycopg.Connection
) -> None:
    """No attempt is counted, the handler does not run, and the next slot runs when the key is
    free.
    """
    ran: list[int] = []
    keys = parse_cron_jobs('{"cleanup": {"schedule": "0 0 * * * *", "lockKey": 5101}}')
    with worker(
        AdvisoryGate(pg_empty_url, keys), lambda ctx: ran.append(ctx.attempt)
    ) as found:
        assert take(other)
        assert outcome(found.run_due()) == ("skipped", "lock_held")
        (skipped,) = found.inspect.slots("cleanup")
        told = found.inspect.explain("cleanup", skipped.slot).sentences
        assert any("Key 5101 was held by " in sentence for sentence in told), told
        assert any(
            f"process {other.info.backend_pid} of" in sentence for sentence in told
        )
        assert ran == []
        give_back(other)
        found.tick("1h")
        assert outcome(found.run_due()) == ("succeeded", None)
    assert ran == [1]


def test_jobs_without_a_key_start(pg_empty_url: str) -> None:
    """They open no session."""
    with worker(
        AdvisoryGate("postgresql://192.0.2.1/none", {"other": KEY}), lambda ctx: None
    ) as found:
        assert outcome(found.run_due()) == ("succeeded", None)


def test_a_lost_session_stops_the_handler(
    pg_empty_url: str, other: psycopg.Connection
) -> None:
    """If the server ends the session, the handler is asked to stop with the reason lock_lost."""
    reasons: list[str | None] = []

    def run(ctx: JobContext) -> None:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = "
            "'advisory' AND pid <> pg_backend_pid()"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        ctx.wait("20s")
        reasons.append(ctx.cancel_reason)

    gate = AdvisoryGate(pg_empty_url, {"cleanup": KEY}, check_every="20ms")
    with worker(gate, run) as found:
        found.run_due()
    assert reasons == ["lock_lost"]
    assert take(other)


def test_the_key_is_kept_after_a_short_run(
    pg_empty_url: str, other: psycopg.Connection
) -> None:
    """With hold_at_least, a program whose clock is behind does not get it at once; the worker does
    not wait for it.
    """
    began: list[float] = []
    gate = AdvisoryGate(pg_empty_url, {"cleanup": KEY}, hold_at_least="700ms")
    with worker(gate, lambda ctx: began.append(elapsed())) as found:
        assert outcome(found.run_due()) == ("succeeded", None)
        eventually(lambda: take(other), "the key is free")
        assert elapsed() - began[0] > 0.6  # the key was taken before the handler began


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"a": 1, "b": 2, "c": 1},
            "jobs 'a' and 'c' have the lock key 1; take a key for each job",
        ),
        (
            [keyed("a", 1), keyed("b", 1)],
            "jobs 'a' and 'b' have the lock key 1; take a key for each job",
        ),
        (
            [keyed("a", 1), keyed("a", 2)],
            "job 'a' has the lock keys 1 and 2; remove one",
        ),
        ([plain], "'plain' has no lock key; declare it with @distributed_scheduled"),
        (["plain"], "'plain' has no lock key; declare it with @distributed_scheduled"),
        (
            {"a": "5101"},
            "job 'a': the lock key '5101' is not a whole number of 64 bits; correct it",
        ),
        (
            5101,
            "AdvisoryGate: 5101 has no keys; pass jobs with a key, or names with keys",
        ),
        (
            {"a": True},
            "job 'a': the lock key True is not a whole number of 64 bits; correct it",
        ),
        (
            {"a": 2**63},
            "job 'a': the lock key 9223372036854775808 is not a whole number of "
            "64 bits; correct it",
        ),
    ],
    ids=[
        "one key for two jobs",
        "one key for two jobs that are declared",
        "two keys",
        "a plain job",
        "a name",
        "a string",
        "a number",
        "a bool",
        "65 bits",
    ],
)
def test_keys_that_are_no_keys(keys: Any, words: str) -> None:
    """A job without a key would start without a lock; two jobs of one key would skip each other's
    slots.
    """
    with pytest.raises(ConfigurationError) as caught:
        AdvisoryGate("postgresql://host/db", keys)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_same_job_twice() -> None:
    """It has one name and one key."""
    AdvisoryGate("postgresql://host/db", [keyed("a", 1), keyed("a", 1)])


def test_refusals() -> None:
    """What cannot work is refused at construction."""
    with pytest.raises(InvalidSetting, match="advisory locks are PostgreSQL's"):
        AdvisoryGate("sqlite:///a.db", {})
    with pytest.raises(InvalidSetting, match="check_every"):
        AdvisoryGate("postgresql://host/db", {}, check_every="0s")
    with pytest.raises(InvalidSetting, match=r'no locks; write \{"job": "lock"\}'):
        LockGate(SQLLocks("sqlite:///a.db"), ["cleanup"], at_most_for="1h")  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match="1 to 64"):
        LockGate(SQLLocks("sqlite:///a.db"), {"cleanup": "x" * 65}, at_most_for="1h")


# -- ShedLock -------------------------------------------------------------------------------------


@pytest.fixture
def java(pg_empty_url: str) -> Iterator[ShedLockSQL]:
    provider = SQLLocks(pg_empty_url)
    provider.create_table()
    provider.close()
    lock = ShedLockSQL(pg_empty_url, "cleanupLock")
    yield lock
    lock.close()


def test_a_lock_of_shedlock_is_a_gate(pg_empty_url: str, java: ShedLockSQL) -> None:
    """While Java holds the lock, the slot is skipped; while our slot runs, Java is refused."""
    got: list[bool] = []
    provider = SQLLocks(pg_empty_url)
    gate = LockGate(provider, {"cleanup": "cleanupLock"}, at_most_for="1h")
    with worker(gate, lambda ctx: got.append(java.lock(HOUR))) as found:
        assert java.lock(HOUR)
        assert outcome(found.run_due()) == ("skipped", "lock_held")
        assert java.unlock()
        found.tick("1h")
        assert outcome(found.run_due()) == ("succeeded", None)
    assert got == [False]
    assert java.lock(HOUR)
    provider.close()


def test_a_lost_lease_stops_the_handler(
    pg_empty_url: str, java: ShedLockSQL, other: psycopg.Connection
) -> None:
    """If the lock is taken away, the next renewal finds it, and the handler is asked to stop."""
    reasons: list[str | None] = []

    def run(ctx: JobContext) -> None:
        other.execute("UPDATE shedlock SET locked_by = 'an operator'")
        ctx.wait("20s")
        reasons.append(ctx.cancel_reason)

    provider = SQLLocks(pg_empty_url)
    with worker(
        LockGate(provider, {"cleanup": "cleanupLock"}, at_most_for="1s"), run
    ) as found:
        found.run_due()
    assert reasons == ["lock_lost"]
    provider.close()


@pytest.mark.extended
def test_an_outage_of_the_locks(
    java: ShedLockSQL, pg_empty_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing runs without an answer. It is counted, logged once, and the ledger has a failed slot
    for each start.
    """
    ran: list[object] = []
    with Proxy(pg_empty_url) as proxy:
        provider = SQLLocks(proxy.url, timeout="200ms")
        gate = LockGate(provider, {"cleanup": "cleanupLock"}, at_most_for="1h")
        gate.verify()
        with worker(gate, lambda ctx: ran.append(ctx.slot)) as found:
            proxy.stall()
            with pytest.raises(LockUnavailable):
                gate.verify()
            gate.verify_at_start({"cleanup"})  # a worker waits for no provider
            for _ in range(2):
                assert outcome(found.run_due())[0] == "failed"
                found.tick("1h")
            assert ran == []
            proxy.heal()
            assert outcome(found.run_due()) == ("succeeded", None)
        provider.close()
    assert (counts(provider).unavailable, counts(provider).outages, len(ran)) == (
        4,
        1,
        1,
    )
    said = [
        record.message
        for record in caplog.records
        if "does not answer" in record.message
    ]
    assert len([line for line in said if line.startswith("SQLLocks")]) == 1


def test_a_gate_without_its_table(pg_empty_url: str) -> None:
    """A worker does not start with locks that it can never acquire."""
    provider = SQLLocks(pg_empty_url)
    gate = LockGate(provider, {"cleanup": "cleanupLock"}, at_most_for="1h")
    with pytest.raises(
        ConfigurationError, match=r"shedlock does not exist.*create_table"
    ):
        gate.verify()
    provider.close()


# -- what is in between ---------------------------------------------------------------------------

POOLED = """
import os
from slotwise import Every, JobRegistry, job
from slotwise.contrib.advisory.gate import AdvisoryGate

@job(name="cleanup", schedule=Every("1s"))
def cleanup(ctx):
    print("ran", flush=True)

registry = JobRegistry(jobs=[cleanup], before_start=[AdvisoryGate(os.environ["KEYS_URL"], {"cleanup": 5101})])
"""


EXTENDED = pytest.mark.extended  # they need pgbouncer


@pytest.fixture
def pooler(pg_empty_url: str, open_path: Path) -> Iterator[str]:
    """A transaction pooler before the server; what cannot be installed fails the test."""
    with pgbouncer(pg_empty_url, open_path) as address:
        yield address


@EXTENDED
def test_a_transaction_pooler_is_refused(pooler: str) -> None:
    """It would run the unlock on the session of another client."""
    with pytest.raises(ConfigurationError, match="transaction pooler"):
        AdvisoryGate(pooler, {"cleanup": KEY}).verify()


def test_a_busy_transaction_pooler_is_refused(
    pg_empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside other clients it may lend both sessions the same server process for a while."""
    processes = iter([7, 8, 7, 8, 7, 8, 9])
    monkeypatch.setattr(gate_module, "_backend", lambda session: next(processes))
    with pytest.raises(ConfigurationError, match="transaction pooler"):
        AdvisoryGate(pg_empty_url, {"cleanup": KEY}).verify()
    assert list(processes) == []


@EXTENDED
def test_a_worker_refuses_a_transaction_pooler(
    pooler: str, pg_url: str, tmp_path: Path
) -> None:
    """It ends with the reason before it claims anything, and so does the pod of a CronJob."""
    shell = Shell(tmp_path, pg_url)
    shell.environment |= {"SLOTWISE_APP": "jobs:registry", "KEYS_URL": pooler}
    shell.write("jobs.py", POOLED)
    for command in (
        ["worker"],
        ["run", "cleanup", "--slot", "due"],
        ["run", "cleanup"],
    ):
        done = shell.run(*command)
        assert done.returncode == exits.FAILED, done.stderr
        assert "a transaction pooler is in between" in done.stderr
        assert "Traceback" not in done.stderr
        assert "ran" not in done.stdout


@EXTENDED
def test_a_session_pool_is_accepted(pg_empty_url: str, open_path: Path) -> None:
    """Each client has a session of the server of its own."""
    with pgbouncer(pg_empty_url, open_path, mode="session") as address:
        AdvisoryGate(address, {"cleanup": KEY}).verify()


def test_an_absent_server_is_checked_later(
    pg_empty_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker starts while the server of the keys is away; no handler starts, and the ledger has
    the slot.
    """
    ran: list[int] = []
    gate = AdvisoryGate(
        "postgresql://127.0.0.1:1/none", {"cleanup": KEY}, timeout="1s"
    )
    with pytest.raises(
        LockUnavailable, match=r"127\.0\.0\.1:1/none: OperationalError: "
    ) as caught:
        gate.verify()
    assert "\n" not in str(caught.value)
    gate.verify_at_start({"cleanup"})
    with worker(gate, lambda ctx: ran.append(1)) as found:
        assert outcome(found.run_due())[0] == "failed"
    assert ran == []
    assert (counts(gate).unavailable, counts(gate).outages, counts(gate).acquired) == (
        3,
        1,
        0,
    )
    (line,) = [
        record.message for record in caplog.records if record.name == "slotwise.locks"
    ]
    assert line.startswith(
        "postgresql+psycopg://127.0.0.1:1/none does not answer; no lock is acquired until it does: "
    )


@pytest.mark.extended
def test_an_outage_of_the_keys(
    pg_empty_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing runs without an answer. It is counted, logged once, and the ledger has a failed slot
    for each start.
    """
    ran: list[object] = []
    with Proxy(pg_empty_url) as proxy, caplog.at_level("INFO", "slotwise.locks"):
        gate = AdvisoryGate(proxy.url, {"cleanup": KEY}, timeout="200ms")
        gate.verify()
        with worker(gate, lambda ctx: ran.append(ctx.slot)) as found:
            proxy.stall()
            for _ in range(2):
                assert outcome(found.run_due())[0] == "failed"
                found.tick("1h")
            assert ran == []
            proxy.heal()
            assert outcome(found.run_due()) == ("succeeded", None)
    assert len(ran) == 1
    assert (counts(gate).unavailable, counts(gate).outages, counts(gate).acquired) == (
        2,
        1,
        1,
    )
    first, last = [
        record.message for record in caplog.records if record.name == "slotwise.locks"
    ]
    assert " does not answer; no lock is acquired until it does: " in first
    assert last.endswith(" answers again")


def test_an_address_that_never_works(pg_empty_url: str) -> None:
    """A worker refuses to start: no repetition cures it."""
    wrong = pg_empty_url.rpartition("/")[0] + "/no_such_database"
    gate = AdvisoryGate(wrong, {"cleanup": KEY})
    with pytest.raises(
        ConfigurationError,
        match="does not exist; create the database, or correct its name",
    ) as caught:
        gate.verify_at_start({"cleanup"})
    assert "\n" not in str(caught.value)


# -- what a worker checks -------------------------------------------------------------------------


def start(database: str, jobs: list[object], *hooks: object, **settings: Any) -> None:
    """Start a worker and stop it."""
    registry = JobRegistry(
        jobs=jobs, before_start=hooks, database_url=database, **settings
    )
    registry.make_worker().sign_in.plan()
    registry.start(timeout="10s")
    registry.stop()


def locks(open_path: Path) -> SQLLocks:
    provider = SQLLocks(f"sqlite:///{open_path}/locks.db")
    provider.create_table()
    return provider


@pytest.mark.parametrize("kind", ["locks", "keys"])
@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("plian", "did you mean plain"),
        ("other", "remove it from the gate, or register the job"),
    ],
)
def test_a_gate_with_an_unknown_job(
    kind: str, name: str, cure: str, sqlite_url: str, tmp_path: Path
) -> None:
    """The job that was meant would run without its lock, so the worker does not start."""
    gate = (
        LockGate(locks(tmp_path), {name: "lock"}, at_most_for="1h")
        if kind == "locks"
        else AdvisoryGate("postgresql://127.0.0.1:1/none", {name: 1})
    )
    with pytest.raises(ConfigurationError, match=f"Gate: no job '{name}'; {cure}"):
        start(sqlite_url, [plain], gate)


def test_a_gate_with_a_job_that_only_leaves_out(
    sqlite_url: str, tmp_path: Path
) -> None:
    """Each worker of a fleet may run some of the jobs; the gate has the locks of all."""

    @job(name="other", schedule=Every("1h"))
    def other(ctx: JobContext) -> None: ...

    gate = LockGate(locks(tmp_path), {"plain": "a", "other": "b"}, at_most_for="1h")
    start(sqlite_url, [plain, other], gate, only=["other"])


@pytest.mark.parametrize(
    "keys", [None, {"plain": 7}, {"cleanup": 8, "plain": 7}], ids=str
)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_key_without_a_gate(
    keys: dict[str, int] | None, is_async: bool, sqlite_url: str
) -> None:
    """The job would run without its key, so the worker does not start."""

    def cleanup(ctx: JobContext) -> None: ...

    async def awaited(ctx: JobContext) -> None: ...

    declared = distributed_scheduled(cron="* * * * *", lock_key=77, name="cleanup")(
        awaited if is_async else cleanup
    )
    gates = (
        [] if keys is None else [AdvisoryGate("postgresql://127.0.0.1:1/none", keys)]
    )
    assert (
        JobRegistry(jobs=[declared], database_url=sqlite_url).jobs[0].is_async
        == is_async
    )
    with pytest.raises(
        InvalidJob,
        match=r"'cleanup' has the lock key 77.*before_start=\[AdvisoryGate\(url, jobs\)\]",
    ):
        start(sqlite_url, [declared, plain], *gates)


def test_a_key_with_its_gate(sqlite_url: str) -> None:
    """The worker starts, also while the server of the keys is away."""
    declared = keyed("cleanup", 77)
    start(
        sqlite_url,
        [declared],
        AdvisoryGate("postgresql://127.0.0.1:1/none", [declared], timeout="1s"),
    )
