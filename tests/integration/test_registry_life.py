"""Starting, running and stopping a worker inside this process, on both databases."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from tests.integration.hearing import Heard, gone, sorted_out, threads_of_ours
from tests.kit.events import events
from tests.kit.loops import held_claims, sign_in
from tests.kit.patience import PATIENCE
from tests.kit.records import Failed

from slotwise import (
    ConfigurationError,
    DatabaseUnreachable,
    Disabled,
    Every,
    JobContext,
    JobRegistry,
    PlanMissing,
    Retry,
    SchemaMismatch,
    SchemaMissing,
    job,
    task,
)
from slotwise.contrib.processes.slot_run import SlotRun


def nothing(ctx: JobContext) -> None:
    """Returns."""


async def nothing_later(ctx: JobContext) -> None:
    """Returns."""


HOURLY = job(name="hourly", schedule=Every("1h"))(nothing)
MAIL = task(name="mail")(nothing)


def a_registry(
    url: str, heard: Heard, *subjects: object, **options: Any
) -> JobRegistry:
    options = {
        "process_hook": False,
        "shutdown_grace": "10s",
        "poll_interval": "1s",
    } | options
    return JobRegistry(
        **sorted_out(*(subjects or (HOURLY, MAIL))),
        listeners=[heard],
        database_url=url,
        **options,
    )


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Whatever a test does, no thread of ours outlives it."""
    yield
    assert gone()


def execute(registry: JobRegistry, *statements: str) -> None:
    with registry.database.migrations().connect() as connection, connection.begin():
        for statement in statements:
            connection.exec_driver_sql(statement)
    registry.database.close()


def rows(registry: JobRegistry, statement: str) -> list[tuple[Any, ...]]:
    with registry.database.main.connect() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(statement)]


# -- start ----------------------------------------------------------------------------------------


def test_a_worker_runs_and_leaves_nothing(url: str, heard: Heard) -> None:
    """It plans, signs in, runs what is due, signs out; no thread and no connection stays."""
    ran = threading.Event()
    registry = a_registry(url, heard, HOURLY, task(name="ring")(lambda ctx: ran.set()))
    with registry:
        registry.client.schedule("ring")
        assert ran.wait(PATIENCE)
        assert [(event.job, event.change) for event in heard.of("planned")] == [
            ("hourly", "added")
        ]
        assert rows(registry, "select state from scheduled_workers") == [("running",)]
        worker = registry.worker
        assert worker is not None
    assert registry.worker is None
    assert rows(registry, "select count(*) from scheduled_workers") == [(0,)]
    assert rows(
        registry, "select count(*) from scheduled_tasks where task_name = 'ring'"
    ) == [(0,)]
    assert heard.names()[-1] == "drain_end"
    registry.database.close()
    assert not any(
        engine.pool.checkedout() for engine in registry.database._engines.values()
    )  # type: ignore[attr-defined]


def test_start_and_stop_as_often_as_one_likes(url: str, heard: Heard) -> None:
    """A stopped registry can be started again: another worker, the same rows."""
    registry = a_registry(url, heard)
    for _ in range(3):
        registry.start()
        with pytest.raises(
            ConfigurationError, match="the registry is running already; stop it first"
        ):
            registry.start()
        with pytest.raises(
            ConfigurationError, match="stop it before changing its settings"
        ):
            registry.configure(threads=3)
        assert registry.stop() == 0
        assert registry.stop() == 0
    told = [(event.change, event.level) for event in heard.of("planned")]
    assert told == [
        ("added", logging.INFO),
        ("kept", logging.DEBUG),
        ("kept", logging.DEBUG),
    ]
    assert len({event.worker for event in heard.of("worker_start")}) == 3


def test_two_threads_that_start_make_one_worker(sqlite_url: str, heard: Heard) -> None:
    """Race: both find that none is running."""
    registry = a_registry(sqlite_url, heard)
    barrier, refused = threading.Barrier(2), []

    def start() -> None:
        barrier.wait(PATIENCE)
        try:
            registry.start()
        except ConfigurationError as error:
            refused.append(error)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(refused) == 1
    registry.stop()
    assert len(heard.of("worker_start")) == 1


@pytest.mark.parametrize("kind", ["pg_empty_url", "sqlite_empty_url"])
def test_no_tables(kind: str, request: pytest.FixtureRequest, heard: Heard) -> None:
    """One line, with the command that mends it; nothing is left."""
    registry = a_registry(request.getfixturevalue(kind), heard)
    with pytest.raises(SchemaMissing) as missing:
        registry.start()
    if kind == "pg_empty_url":
        assert (
            str(missing.value)
            == "the tables scheduled_* are missing in this database; run: slotwise db upgrade"
        )
    else:
        assert "there is no SQLite file" in str(missing.value)
    assert registry.worker is None
    assert threads_of_ours() == []


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (
            "0",
            "the schema_version in scheduled_meta is '0', which is none; if this "
            "slotwise made the tables, say so",
        ),
        ("99", "upgrade slotwise here"),
    ],
    ids=["none", "newer"],
)
def test_tables_of_another_version(
    url: str, heard: Heard, version: str, words: str
) -> None:
    """None that there was: say which. Newer: mend us."""
    registry = a_registry(url, heard)
    execute(
        registry,
        f"update scheduled_meta set value = '{version}' where key = 'schema_version'",
    )
    with pytest.raises(SchemaMismatch) as mismatch:
        registry.start()
    assert words in str(mismatch.value)


def test_a_missing_table(url: str, heard: Heard) -> None:
    """Named, with what to do."""
    registry = a_registry(url, heard)
    execute(registry, "drop table scheduled_gaps")
    with pytest.raises(
        SchemaMismatch, match="missing in the database: table scheduled_gaps"
    ):
        registry.start()


SWALLOW = {
    "pg_url": (
        "create function swallow() returns trigger language plpgsql as $$ begin "
        "return null; end $$",
        "create trigger swallow before insert on scheduled_tasks for each row "
        "when (new.task_name = 'hourly') execute function swallow()",
    ),
    "sqlite_url": (
        "create trigger swallow after insert on scheduled_tasks when "
        "new.task_name in ('hourly', 'off') begin "
        "delete from scheduled_tasks where task_name = new.task_name; end",
    ),
}


@pytest.mark.parametrize("kind", SWALLOW)
def test_a_job_without_its_row(
    kind: str, request: pytest.FixtureRequest, heard: Heard
) -> None:
    """It would never run, and nobody would know: the start fails, and names it."""
    other = job(name="other", schedule=Every("1h"))(nothing)
    off = job(name="off", schedule=Disabled())(nothing)
    registry = a_registry(request.getfixturevalue(kind), heard, HOURLY, other, off)
    execute(registry, *SWALLOW[kind])
    with pytest.raises(PlanMissing) as missing:
        registry.start()
    assert (
        str(missing.value)
        == "no row in scheduled_tasks for: hourly; something deletes rows of that table"
    )
    assert registry.worker is None
    assert rows(registry, "select count(*) from scheduled_workers") == [(0,)]
    registry.database.close()


def with_new_jobs(
    url: str, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> JobRegistry:
    """A job that is planned and due, and five new ones, of which the start plans two at a time."""
    monkeypatch.setattr(sign_in, "BATCH", 2)
    known = job(name="known", schedule=Every("1s"))(nothing)
    with a_registry(url, Heard(), known) as before:
        pass
    before.database.close()
    return a_registry(
        url,
        heard,
        *(job(name=f"new-{n}", schedule=Every("1h"))(nothing) for n in range(5)),
        known,
    )


def test_known_jobs_start_while_new_ones_are_planned(
    url: str, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten thousand new jobs, the first batch is planned before the first claim, and the others
    beside it.
    """
    registry, waited = with_new_jobs(url, heard, monkeypatch), []

    def wait(event: events.Event) -> None:
        if isinstance(event, events.Planned) and event.job == "new-2":
            heard.wait("handler_start", job="known")
            waited.append(event.job)

    registry.listen(wait)
    with registry:
        assert waited == ["new-2"]
        planned = [event.job for event in heard.of("planned")]
        assert planned == ["known", "new-0", "new-1", "new-2", "new-3", "new-4"]
    registry.database.close()


@pytest.mark.parametrize("end", ["stop", "missing"])
def test_the_planning_of_new_jobs_ends_early(
    end: str, pg_url: str, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a stop, between two batches; or as a row is missing. The worker drains, and leaves
    nothing behind.
    """
    registry = with_new_jobs(pg_url, heard, monkeypatch)
    if end == "stop":
        registry.listen(
            lambda event: (
                getattr(event, "job", "") == "new-2" and registry.stop() and None
            )
        )
        registry.start()
    else:
        execute(
            registry,
            *(statement.replace("hourly", "new-3") for statement in SWALLOW["pg_url"]),
        )
        with pytest.raises(PlanMissing, match="for: new-3;"):
            registry.start()
    assert registry.worker is None
    assert heard.names()[-1] == "drain_end"
    found = rows(
        registry,
        "select task_name, picked from scheduled_tasks where task_name <> 'known' order by 1",
    )
    assert found == [
        (f"new-{n}", False) for n in range(5) if n < 4 and (end, n) != ("missing", 3)
    ]
    assert rows(registry, "select count(*) from scheduled_workers") == [(0,)]
    registry.database.close()


def test_a_disabled_job_has_a_row_and_does_not_run(url: str, heard: Heard) -> None:
    """Parked, for people to see."""
    registry = a_registry(url, heard, job(name="off", schedule=Disabled())(nothing))
    with registry:
        pass
    assert rows(
        registry, "select task_name, picked, schedule from scheduled_tasks"
    ) in (
        [("off", False, "-")],
        [("off", 0, "-")],
    )
    registry.database.close()


def test_a_start_that_waits_for_its_database_can_be_stopped(heard: Heard) -> None:
    """Said once; stop() ends the wait, and both return."""
    registry = a_registry(
        "postgresql://nobody@127.0.0.1:1/none",
        heard,
        job(name="a", schedule=Every("1s"))(nothing_later),
    )
    starter = threading.Thread(target=registry.start, name="starter")
    starter.start()
    (lost,) = heard.wait("database_lost")
    assert lost.loop == "start"
    assert "127.0.0.1" in lost.error
    assert registry.stop() == 0
    starter.join(PATIENCE)
    assert not starter.is_alive()
    assert registry.worker is None
    assert "worker_start" not in heard.names()
    assert len(heard.of("database_lost")) == 1


def test_a_start_has_a_bound(heard: Heard) -> None:
    """While the database is away: an error in time, and nothing runs, so that it can be tried
    again.
    """
    registry = a_registry("postgresql://nobody@127.0.0.1:1/nothing", heard)
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(
            DatabaseUnreachable,
            match=r"could not start within 500ms: the database does not answer",
        ):
            registry.start(timeout="500ms")
        assert 0.4 < time.monotonic() - began < 10
        assert registry.worker is None


def test_a_start_within_its_bound(url: str, heard: Heard) -> None:
    """The bound is for the start alone: the worker runs on."""
    registry = a_registry(url, heard, job(name="a", schedule=Every("1s"))(nothing))
    registry.start(timeout="20s")
    heard.wait("settled")
    assert registry.stop() == 0


def test_a_start_that_is_not_waited_for(
    databases: Any, pg_empty_url: str, heard: Heard
) -> None:
    """It returns at once; the worker follows when the database is there."""
    from tests.databases import provision

    name = sa.make_url(pg_empty_url).database
    provision(pg_empty_url)
    admin = databases._connect()
    admin.execute(f'alter database "{name}" allow_connections false')
    registry = a_registry(pg_empty_url, heard)
    try:
        registry.start(wait=False)
        assert registry.worker is not None
        assert not registry.worker.poller.has_started
        with pytest.raises(ConfigurationError, match="running already"):
            registry.start(wait=False)
        heard.wait("database_lost")
    finally:
        admin.execute(f'alter database "{name}" allow_connections true')
    heard.wait("worker_start")
    assert registry.start_error is None
    assert registry.stop() == 0


def test_a_start_that_is_not_waited_for_can_be_stopped(heard: Heard) -> None:
    registry = a_registry("postgresql://nobody@127.0.0.1:1/nothing", heard)
    registry.start(wait=False)  # with a wait, it would not return
    heard.wait("database_lost")
    assert registry.stop() == 0
    assert (registry.worker, registry.start_error) == (None, None)


def test_a_start_that_is_not_waited_for_and_fails(
    pg_empty_url: str, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is logged and kept, and nothing runs; the next start forgets it."""
    registry = a_registry(pg_empty_url, heard)
    registry.start(wait=False)
    gone_by_now(lambda: registry.worker is None)
    assert isinstance(registry.start_error, SchemaMissing)
    assert [
        one.message
        for one in caplog.records
        if "the worker cannot start" in one.message
    ]
    with pytest.raises(SchemaMissing):
        registry.start()
    assert registry.start_error is None


def test_a_start_that_is_not_waited_for_runs_jobs(url: str, heard: Heard) -> None:
    registry = a_registry(url, heard, job(name="a", schedule=Every("1s"))(nothing))
    registry.start(wait=False)
    heard.wait("settled")
    assert registry.stop() == 0


def test_a_bound_without_a_wait(url: str, heard: Heard) -> None:
    with pytest.raises(
        ConfigurationError, match="wait=False, which waits for nothing"
    ):
        a_registry(url, heard).start(timeout="1s", wait=False)


def test_a_start_goes_on_when_the_database_comes(
    databases: Any, pg_empty_url: str, heard: Heard
) -> None:
    """The tables are there, the address is right, the server refuses: it waits, and then
    starts.
    """
    from tests.databases import provision

    name = sa.make_url(pg_empty_url).database
    provision(pg_empty_url)
    admin = databases._connect()
    admin.execute(f'alter database "{name}" allow_connections false')
    registry = a_registry(pg_empty_url, heard)
    starter = threading.Thread(target=registry.start)
    starter.start()
    try:
        heard.wait("database_lost")
    finally:
        admin.execute(f'alter database "{name}" allow_connections true')
    heard.wait("worker_start")
    starter.join(PATIENCE)
    registry.stop()
    assert heard.names().index("database_back") < heard.names().index("worker_start")


def test_a_start_can_be_stopped_by_what_it_calls(url: str, heard: Heard) -> None:
    """Race: a signal handler, or a listener, stops the registry in the very thread that is
    starting it.
    """
    life = Life()
    later = job(name="a", schedule=Every("1h"))(nothing_later)
    registry = a_registry(url, heard, later, lifespan=life)
    registry.listen(lambda event: event.name == "planned" and registry.stop() and None)
    registry.start()
    assert registry.worker is None
    assert threads_of_ours() == []
    assert "worker_start" not in heard.names()
    assert life.said in ([], ["enter", "leave"])
    assert rows(registry, "select count(*) from scheduled_workers") == [(0,)]
    registry.database.close()


@pytest.mark.parametrize("how", ["stop", "request", "interrupt"])
def test_a_stop_in_the_last_line_of_a_start_settles_what_runs_already(
    url: str, heard: Heard, how: str
) -> None:
    """Race: all loops run, a handler too, and the start has not returned. It drains, as it would a
    moment later.
    """
    entered, go = threading.Event(), threading.Event()
    registry = a_registry(
        url,
        heard,
        task(name="mail")(lambda ctx: entered.set() or (go.wait(PATIENCE) and None)),
    )
    registry.client.schedule("mail")

    def at_the_start(event: events.Event) -> None:
        if event.name == "worker_start":
            assert entered.wait(PATIENCE)
            go.set()
            if how == "interrupt":
                raise KeyboardInterrupt
            (registry.stop if how == "stop" else registry.worker.request_stop)()

    registry.listen(at_the_start)
    with pytest.raises(KeyboardInterrupt) if how == "interrupt" else nullcontext():
        registry.start()
    registry.stop()
    assert heard.names().count("drain_begin") == 1
    assert [event.outcome for event in heard.of("settled")] == ["succeeded"]
    assert rows(registry, "select count(*) from scheduled_tasks") == [(0,)]
    assert rows(registry, "select count(*) from scheduled_workers") == [(0,)]
    registry.database.close()


def test_a_slot_in_the_foreground_keeps_its_claim(
    url: str, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Race: a heartbeat between the commit of the claim and its arrival in the holdings must not
    hand it back.
    """
    registry = a_registry(url, heard)
    run = registry.single_run("hourly")
    claim = run._claim

    def claim_with_a_heartbeat_after_it() -> Any:
        claimed = claim()
        run.worker.heartbeat.run_once()
        return claimed

    monkeypatch.setattr(run, "_claim", claim_with_a_heartbeat_after_it)
    assert run.run().succeeded
    assert heard.of("handed_back") == []
    registry.database.close()


def test_a_deaf_slot_in_the_foreground_ends_all_the_same(
    url: str, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It blocks the loop on which the lifespan would be left: once it was cancelled, that is
    waited for no longer.
    """
    entered, release = threading.Event(), threading.Event()

    async def blocks(ctx: JobContext) -> None:
        entered.set()
        release.wait(PATIENCE)

    for place in (
        "process.single_run.HANDLER_PATIENCE",
        "run.event_loop.EVENT_LOOP_PATIENCE",
        "worker.LONGEST_ASIDE",
    ):
        monkeypatch.setattr(f"slotwise.engine.{place}", timedelta(milliseconds=100))
    deaf = job(name="deaf", schedule=Every("1d"))(blocks)
    registry = a_registry(url, heard, deaf, lifespan=Life(), shutdown_grace="0s")
    run = registry.single_run("deaf")
    with ThreadPoolExecutor(1) as threads:
        ended = threads.submit(run.run)
        assert entered.wait(PATIENCE)
        run.cancel()
        try:
            assert ended.result(PATIENCE / 2).left_behind
        finally:
            release.set()
    registry.database.close()


def test_no_connection_stays(pg_url: str, heard: Heard) -> None:
    """Neither of a worker that has stopped, nor of a start that failed."""
    sessions = (
        "select count(*) from pg_stat_activity where datname = current_database() and "
        "pid <> pg_backend_pid()"
    )
    engine = sa.create_engine(
        pg_url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sa.NullPool
    )

    def others() -> int:
        with engine.connect() as connection:
            return int(connection.exec_driver_sql(sessions).scalar_one())

    with a_registry(pg_url, heard):
        assert others() >= 2
    gone_by_now(lambda: others() == 0)
    failing = a_registry(pg_url, heard, lifespan=Life(fails="enter"))
    with pytest.raises(OSError, match="cannot enter"):
        failing.start()
    gone_by_now(lambda: others() == 0)
    engine.dispose()


def gone_by_now(condition: Callable[[], bool]) -> None:
    """The server notices the end of a session a moment after it."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


# -- the lifespan ---------------------------------------------------------------------------------


class Life:
    """A lifespan that writes down when it is entered and left."""

    def __init__(self, fails: str = "") -> None:
        self.said: list[str] = []
        self._fails = fails

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[dict[str, int]]:
        self._say("enter")
        yield {"answer": 42}
        self._say("leave")

    def _say(self, word: str) -> None:
        self.said.append(word)
        if word == self._fails:
            raise OSError(f"cannot {word}")


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_the_lifespan_is_around_everything(
    url: str, heard: Heard, is_async: bool
) -> None:
    """Entered before the first handler starts, left after the last has ended; its value is
    ctx.state.
    """
    life, seen, entered = Life(), [], threading.Event()

    def handle(ctx: JobContext) -> None:
        seen.append(ctx.state)
        entered.set()
        ctx.wait("200ms")
        life.said.append("handled")

    async def handle_later(ctx: JobContext) -> None:
        handle(ctx)

    registry = a_registry(
        url,
        heard,
        task(name="mail")(handle_later if is_async else handle),
        lifespan=life,
    )
    with registry:
        registry.client.schedule("mail")
        assert entered.wait(PATIENCE)
    assert life.said == ["enter", "handled", "leave"]
    assert seen == [{"answer": 42}]


def test_a_lifespan_that_cannot_be_entered(url: str, heard: Heard) -> None:
    """The start raises what it raised; no thread, no loop, no connection, no worker's row
    stays, and no schedule has changed.
    """
    registry = a_registry(url, heard, lifespan=Life(fails="enter"))
    with pytest.raises(OSError, match="cannot enter"):
        registry.start()
    assert rows(registry, "select count(*) from scheduled_tasks") == [(0,)]
    assert threads_of_ours() == []
    assert registry.worker is None
    assert rows(registry, "select count(*) from scheduled_workers") == [(0,)]
    registry.database.close()


class Door:
    """A ``before_start`` hook that can be verified."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.said = error, list[str]()

    def verify_at_start(self, names: Collection[str]) -> None:
        assert {"hourly", "mail"} <= set(names)
        self.said.append("verified")
        if self.error is not None:
            raise self.error

    def __call__(self, ctx: JobContext) -> None:
        self.said.append("asked")


def test_a_hook_is_verified_before_anything_is_claimed(url: str, heard: Heard) -> None:
    """Once for each start of a worker, and for a slot in the foreground."""
    door = Door()
    registry = a_registry(url, heard, before_start=[door, lambda ctx: None])
    with registry:
        registry.client.schedule("mail")
        heard.wait("settled", job="mail")
    assert door.said == ["verified", "asked"]
    registry.single_run("hourly").run()
    assert door.said == ["verified", "asked"] * 2
    registry.database.close()


def test_a_hook_that_cannot_be_used_ends_the_start(url: str, heard: Heard) -> None:
    """The start raises what the hook raised; the lifespan is not entered, and nothing stays."""
    life, door = Life(), Door(ConfigurationError("a transaction pooler is in between"))
    registry = a_registry(url, heard, before_start=[door], lifespan=life)
    alone = [SlotRun(registry, "hourly").run, registry.single_run("hourly").run]
    for start in (*alone, registry.start):
        with pytest.raises(ConfigurationError, match="a transaction pooler"):
            start()
    assert (life.said, door.said) == ([], ["verified"] * 3)
    assert threads_of_ours() == []
    assert registry.worker is None
    assert rows(registry, "select count(*) from scheduled_workers") == [(0,)]
    registry.database.close()


def test_a_lifespan_that_cannot_be_left(url: str, heard: Heard) -> None:
    """The stop raises what it raised; everything has ended all the same."""
    registry = a_registry(url, heard, lifespan=Life(fails="leave"))
    registry.start()
    with pytest.raises(OSError, match="cannot leave"):
        registry.stop()
    assert threads_of_ours() == []
    assert heard.names()[-1] == "drain_end"
    assert rows(registry, "select count(*) from scheduled_workers") == [(0,)]
    assert registry.stop() == 0
    registry.database.close()


# -- stop -----------------------------------------------------------------------------------------


def test_a_drain_lets_handlers_finish(url: str, heard: Heard) -> None:
    """What runs ends, what waits goes back, nothing new starts."""
    entered, go = threading.Event(), threading.Event()

    def work(ctx: JobContext) -> None:
        entered.set()
        assert go.wait(PATIENCE)
        assert ctx.stopping

    registry = a_registry(url, heard, task(name="mail")(work), threads=1)
    registry.start()
    registry.client.schedule("mail", id="running")
    assert entered.wait(PATIENCE)
    registry.client.schedule("mail", id="waiting")
    stopped: list[int] = []
    stopper = threading.Thread(target=lambda: stopped.append(registry.stop()))
    stopper.start()
    heard.wait("drain_begin")
    go.set()
    stopper.join(PATIENCE)
    assert stopped == [0]
    assert [event.id for event in heard.of("settled", outcome="succeeded")] == [
        "running"
    ]
    assert rows(registry, "select task_instance, attempt from scheduled_tasks") == [
        ("waiting", 0)
    ]
    registry.database.close()


def test_a_second_stop_waits_for_the_first(url: str, heard: Heard) -> None:
    """Whoever leaves the with block meanwhile must not take away what the handlers still use."""
    entered, go = threading.Event(), threading.Event()
    registry = a_registry(
        url,
        heard,
        task(name="mail")(lambda ctx: entered.set() or (go.wait(PATIENCE) and None)),
    )
    registry.start()
    registry.client.schedule("mail")
    assert entered.wait(PATIENCE)
    stoppers = [threading.Thread(target=registry.stop) for _ in range(3)]
    for stopper in stoppers:
        stopper.start()
    heard.wait("drain_begin")
    assert all(stopper.is_alive() for stopper in stoppers)
    go.set()
    for stopper in stoppers:
        stopper.join(PATIENCE)
    assert len(heard.of("drain_end")) == 1
    assert registry.worker is None


@pytest.mark.extended
def test_a_handler_that_does_not_stop_keeps_its_claim(url: str, heard: Heard) -> None:
    """The process goes on, and so does the handler: nobody else may start it at its side, until it
    has returned.
    """
    entered, told, go = threading.Event(), threading.Event(), threading.Event()

    def deaf(ctx: JobContext) -> None:
        entered.set()
        if ctx.wait(timedelta(seconds=PATIENCE)):
            told.set()
        go.wait(PATIENCE)

    registry = a_registry(
        url,
        heard,
        task(name="mail")(deaf),
        shutdown_grace="1s",
        heartbeat_interval="200ms",
        missed_heartbeats_limit=3,
    )
    other = a_registry(
        url,
        Heard(),
        task(name="mail")(nothing),
        heartbeat_interval="200ms",
        missed_heartbeats_limit=3,
    )
    registry.start()
    registry.client.schedule("mail")
    assert entered.wait(PATIENCE)
    try:
        assert registry.stop(timedelta(0)) == 1
        assert told.is_set()
        assert [event.unfinished for event in heard.of("drain_end")] == [1]
        assert registry.worker is None
        with other:
            heard.wait(
                "heartbeat", len(heard.of("heartbeat")) + 6
            )  # for longer than the lease
            assert rows(other, "select picked, attempt from scheduled_tasks") in (
                [(True, 1)],
                [(1, 1)],
            )
    finally:
        go.set()
    (end,) = heard.wait("settled")
    assert (end.outcome, end.attempt) == ("succeeded", 1)
    gone_by_now(
        lambda: rows(other, "select count(*) from scheduled_workers") == [(0,)]
    )
    other.database.close()


def test_a_stopped_registry_may_start_again_beside_what_did_not_stop(
    url: str, heard: Heard
) -> None:
    """The new worker leaves the old one's claim alone, and the old one ends by itself."""
    entered, go = threading.Event(), threading.Event()

    def deaf(ctx: JobContext) -> None:
        entered.set()
        go.wait(PATIENCE)

    registry = a_registry(
        url,
        heard,
        task(name="mail")(deaf),
        task(name="other")(nothing),
        shutdown_grace="1s",
    )
    registry.start()
    registry.client.schedule("mail")
    assert entered.wait(PATIENCE)
    try:
        assert registry.stop(timedelta(0)) == 1
        with registry:
            registry.client.schedule("other")
            heard.wait("settled", job="other")
    finally:
        go.set()
    (end,) = heard.wait("settled", job="mail")
    assert (end.outcome, end.attempt) == ("succeeded", 1)
    registry.database.close()


def test_unstarted_coroutines_go_back_at_once(url: str, heard: Heard) -> None:
    """Also when a handler blocks the loop, so that nobody there can look at the queue."""
    entered, go = threading.Event(), threading.Event()

    async def blocking(ctx: JobContext) -> None:
        entered.set()
        go.wait(PATIENCE)

    registry = a_registry(
        url, heard, task(name="blocks")(blocking), task(name="waits")(nothing_later)
    )
    registry.start()
    registry.client.schedule("blocks")
    assert entered.wait(PATIENCE)
    registry.client.schedule("waits")
    heard.wait("claimed", job="waits")
    stopper = threading.Thread(target=registry.stop)
    stopper.start()
    (back,) = heard.wait("handed_back")
    assert (back.job, back.reason) == ("waits", "shutdown")
    assert heard.of("handler_start", job="waits") == []
    go.set()
    stopper.join(PATIENCE)
    assert [event.outcome for event in heard.of("settled", job="blocks")] == [
        "succeeded"
    ]


def test_two_hundred_short_jobs_on_a_few_threads(url: str, heard: Heard) -> None:
    """As many threads as there is capacity, and none in the end."""
    seen: set[str] = set()
    registry = a_registry(
        url,
        heard,
        task(name="mail")(lambda ctx: seen.add(threading.current_thread().name)),
        threads=5,
    )
    with registry:
        for _ in range(200):
            registry.client.schedule("mail")
        heard.wait("settled", 200)
        assert (
            sum(name.startswith("slotwise-handler") for name in threads_of_ours()) <= 5
        )
    assert len(seen) <= 5


# -- what no handler can do -----------------------------------------------------------------------


def test_handlers_that_try_to_end_the_process(url: str, heard: Heard) -> None:
    """SystemExit and KeyboardInterrupt are failures like any other, in def and in async def; the
    next runs.
    """

    def leave(ctx: JobContext) -> None:
        raise SystemExit(3)

    async def leave_later(ctx: JobContext) -> None:
        raise KeyboardInterrupt

    registry = a_registry(
        url,
        heard,
        task(name="exit", retry=None)(leave),
        task(name="interrupt", retry=None)(leave_later),
        task(name="next")(nothing),
        task(name="next-later")(nothing_later),
    )
    with registry:
        for name in ("exit", "interrupt", "next", "next-later"):
            registry.client.schedule(name)
        heard.wait("settled", 4)
    assert {
        event.job: (event.outcome, event.error) for event in heard.of("settled")
    } == {
        "exit": ("dead", "SystemExit: 3"),
        "interrupt": ("dead", "KeyboardInterrupt"),
        "next": ("succeeded", None),
        "next-later": ("succeeded", None),
    }


def test_bad_rows_disturb_nobody(url: str, heard: Heard) -> None:
    """Data that is no JSON ends as dead, with the reason; a row of an unknown task is not
    touched.
    """
    registry = a_registry(url, heard)
    registry.client.schedule("of-another-service", {"id": 1})
    registry.client.schedule("mail", id="bad")
    spelled = "'\\xaced0005'" if url.startswith("postgres") else "X'aced0005'"
    execute(
        registry,
        f"update scheduled_tasks set task_data = {spelled} where task_instance = 'bad'",
    )
    with registry:
        registry.client.schedule("mail", id="good")
        heard.wait("settled", 2)
    assert {event.id: event.outcome for event in heard.of("settled")} == {
        "bad": "dead",
        "good": "succeeded",
    }
    left = rows(
        registry,
        "select task_name, state, last_error, attempt from scheduled_tasks order by task_name",
    )
    assert [row[:2] for row in left] == [
        ("hourly", None),
        ("mail", "dead"),
        ("of-another-service", None),
    ]
    assert "task_data cannot be read as JSON" in left[1][2]
    assert left[2][3] == 0
    registry.database.close()


def test_a_retry_strategy_with_a_mistake_disturbs_nobody(
    url: str, heard: Heard
) -> None:
    """It is asked while outcomes are written: its own task is tried again later, all others
    settle.
    """

    def fail(ctx: JobContext) -> None:
        raise ValueError

    bad = task(name="bad", retry=Retry(max_attempts=3, wait=lambda state: 1 / 0))(fail)  # type: ignore[arg-type]
    registry = a_registry(url, heard, bad, MAIL)
    with registry:
        registry.client.schedule("bad")
        heard.wait("handler_end", job="bad")
        registry.client.schedule("mail")
        heard.wait("settled", 2)
    assert [
        (event.job, event.outcome, event.reason)
        for event in heard.of("settled", job="bad")
    ] == [("bad", "failed", "retry")]
    assert rows(
        registry, "select attempt, last_error is not null from scheduled_tasks"
    ) in ([(1, True)], [(1, 1)])
    registry.database.close()


def test_a_schedule_that_cannot_be_read_any_more(url: str, heard: Heard) -> None:
    """A newer release re-plans the row while it is held: the slot ends, the others settle, the row
    waits for those who can read it.
    """
    entered, go = threading.Event(), threading.Event()
    every = job(name="every", schedule=Every("1s"))(
        lambda ctx: entered.set() or (go.wait(PATIENCE) and None)
    )
    registry = a_registry(url, heard, every, MAIL)
    with registry:
        assert entered.wait(PATIENCE)
        execute_beside(
            registry,
            "update scheduled_tasks set schedule = 'MOON|full' where task_name = 'every'",
        )
        go.set()
        (settled,) = heard.wait("settled", job="every")
        assert settled.outcome == "succeeded"
        registry.client.schedule("mail")
        heard.wait("settled", job="mail")
    ((schedule, error),) = rows(
        registry,
        "select schedule, last_error from scheduled_tasks where task_name = 'every'",
    )
    assert schedule == "MOON|full"
    assert "MOON" in error
    assert rows(
        registry, "select outcome from scheduled_slots where task_name = 'every'"
    ) == [("succeeded",)]
    registry.database.close()


def execute_beside(registry: JobRegistry, statement: str) -> None:
    with registry.database.main.begin() as connection:
        connection.exec_driver_sql(statement)


STUBBORN = (
    """create function refuse() returns trigger language plpgsql as $$ begin
    if old.picked and not new.picked then
        if old.task_instance = 'bad' then raise 'not this one' using errcode = '22000'; end if;
        if old.task_instance = 'later' then raise 'not now' using errcode = '40001'; end if;
    end if;
    return new;
    end $$""",
    "create trigger refuse before update on scheduled_tasks for each row execute function refuse()",
)


def test_one_row_that_cannot_be_written(
    pg_url: str,
    heard: Heard,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The others settle; it waits, which is said once, and is written when it can be."""
    monkeypatch.setattr(held_claims, "STUCK_PAUSE", timedelta(milliseconds=50))
    barrier = threading.Barrier(3)

    def fail(ctx: JobContext) -> None:
        barrier.wait(PATIENCE)  # so that all of them end together
        raise ValueError

    registry = a_registry(
        pg_url, heard, task(name="mail", retry=None)(fail), threads=3
    )
    execute(registry, *STUBBORN)
    for name in ("bad", "good", "also good"):
        registry.client.schedule("mail", id=name)
    with registry:
        heard.wait("settled", 2)
        heard.wait(
            "settle_sent", len(heard.of("settle_sent")) + 2
        )  # it is tried again
        execute_beside(registry, "drop trigger refuse on scheduled_tasks")
        heard.wait("settled", id="bad")
    assert heard.of("claim_lost") == []
    assert caplog.text.count("cannot write the outcome of mail/bad yet") == 1


def test_a_batch_that_breaks_half_way(pg_url: str, heard: Heard) -> None:
    """What was written is told as written: to write it again would look like a loss."""
    registry = a_registry(pg_url, heard, MAIL)
    execute(registry, *STUBBORN)
    names = ["bad", "good", "also good", "later"]
    for name in names:
        registry.client.schedule("mail", id=name)
    store = registry.make_worker().store
    claims = store.claims.claim_tasks(
        "w:1:a", 4, lease=timedelta(minutes=1), names=["mail"]
    )
    claims.sort(key=lambda claim: names.index(claim.key.task_instance))
    settled = store.settlements.settle(
        [(claim, Failed("boom", final=True)) for claim in claims]
    )
    registry.database.close()
    assert [one.claim for one in settled] == claims
    assert [
        (one.transition is not None, one.error is not None) for one in settled
    ] == [
        (False, True),
        (True, False),
        (False, True),
        (False, True),
    ]


def test_a_stopped_worker_leaves_no_loop(sqlite_url: str) -> None:
    """Also of those that only some jobs need."""

    @job(name="timed", schedule=Every("1h"), finish_by="30m")
    def timed(ctx: JobContext) -> None: ...

    with JobRegistry(jobs=[timed], database_url=sqlite_url):
        names = {one.name for one in threading.enumerate()}
        assert {"slotwise-pause_ends", "slotwise-finish_watch"} <= names
    names = {one.name for one in threading.enumerate()}
    assert not {"slotwise-pause_ends", "slotwise-finish_watch"} & names
