"""Building a registry: what it takes, what it refuses and how it says so. No database anywhere in
here.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.kit.ports import plugged_in

from slotwise import (
    ConfigurationError,
    Cron,
    DistributedJob,
    Every,
    InvalidJob,
    InvalidSetting,
    JobContext,
    JobRegistry,
    OneTimeTask,
    Retry,
    Schedule,
    Settings,
    SlotwiseError,
    job,
    task,
)


@pytest.fixture(autouse=True)
def no_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file and no variable of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DATABASE_URL", raising=False)


class NightlyReport(DistributedJob):
    name = "nightly-report"
    schedule = Cron("0 2 * * *", tz="Europe/Vienna")

    def execute(self, ctx: JobContext) -> None:
        pass


class SendMail(OneTimeTask):
    name = "send-mail"

    def execute(self, ctx: JobContext) -> None:
        pass


@job(name="tick", schedule=Every("1m"))
def tick(ctx: JobContext) -> None:
    pass


def a_job(**attributes: Any) -> DistributedJob:
    """A NightlyReport that says something else here and there."""
    return type("NightlyReport", (NightlyReport,), attributes)()


def same(registry: JobRegistry) -> Any:
    return {
        name: found.fingerprint for name, found in registry.definitions.items()
    }, registry.settings


# -- what it takes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (
            {"jobs": [SendMail]},
            r"'send-mail' among jobs is a one-time task, .* pass it in tasks=\[…\]",
        ),
        (
            {"tasks": [NightlyReport]},
            r"'nightly-report' among tasks has a schedule, .* pass it in jobs=\[…\]",
        ),
    ],
    ids=["a task among jobs", "a job among tasks"],
)
def test_the_wrong_list(parts: dict[str, Any], words: str) -> None:
    """Whoever mixes them up expects something else than what would happen."""
    with pytest.raises(InvalidJob, match=words):
        JobRegistry(**parts)
    builder = JobRegistry.builder()
    builder.with_jobs(parts.get("jobs", ())).with_tasks(parts.get("tasks", ()))
    with pytest.raises(InvalidJob, match=words):
        builder.build()


def test_everything_that_is_a_job() -> None:
    """Instances, classes that take no arguments, functions under @job; tasks beside them."""
    registry = JobRegistry(jobs=[NightlyReport, tick], tasks=[SendMail()])
    assert set(registry.definitions) == {"nightly-report", "tick", "send-mail"}
    assert [found.name for found in registry.jobs] == ["nightly-report", "tick"]


def test_the_users_own_objects_come_through_the_constructor() -> None:
    """No super().__init__() needed, and attributes may be set there."""

    class Import(DistributedJob):
        def __init__(self, name: str, source: list[str]) -> None:
            self.name = name
            self.schedule = Every("1h")
            self._source = source

        def execute(self, ctx: JobContext) -> None:
            self._source.append("imported")

    source: list[str] = []
    registry = JobRegistry(
        jobs=[Import("import-a", source), Import("import-b", source)]
    )
    for found in registry.jobs:
        found.handler(None)  # type: ignore[arg-type]
    assert source == ["imported", "imported"]


def test_the_builder_and_the_constructor_build_the_same() -> None:
    """Each setting under its name, jobs and tasks alike."""
    built = (
        JobRegistry.builder()
        .with_job(NightlyReport())
        .with_jobs([tick])
        .with_task(SendMail)
        .with_listener(print)
        .with_interceptor(nullcontext)
        .settings(
            database_url="postgresql://nobody@192.0.2.1/x",
            poll_interval="1h",
            shutdown_grace="0s",
        )
        .settings(
            poll_interval="5s",
            heartbeat_interval=timedelta(seconds=2),
            missed_heartbeats_limit=4,
        )
        .settings(threads=3, process_hook=False, table_prefix="my_")
        .build()
    )
    given = JobRegistry(
        jobs=[NightlyReport(), tick],
        tasks=[SendMail],
        listeners=[print],
        interceptors=[nullcontext],
        database_url="postgresql://nobody@192.0.2.1/x",
        poll_interval="5s",
        heartbeat_interval="PT2S",
        missed_heartbeats_limit=4,
        shutdown_grace=timedelta(0),
        threads=3,
        process_hook=False,
        table_prefix="my_",
    )
    assert same(built) == same(given)
    assert built.hooks == given.hooks


def test_customize_runs_last_and_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over keywords, the environment and the command line, wherever in the chain it was given."""
    monkeypatch.setenv("SLOTWISE_THREADS", "2")

    def customize(settings: Settings) -> Settings:
        seen.append(settings.threads)
        return settings.replace(threads=50, poll_interval=settings.poll_interval * 2)

    seen: list[int | None] = []
    built = (
        JobRegistry.builder()
        .customize(customize)
        .with_job(tick)
        .settings(poll_interval="5s")
        .build()
    )
    assert (built.settings.threads, built.settings.poll_interval) == (
        50,
        timedelta(seconds=10),
    )
    built.configure(threads=7, heartbeat_interval="1s")
    assert seen == [2, 7]
    assert (built.settings.threads, built.settings.heartbeat_interval) == (
        50,
        timedelta(seconds=1),
    )
    assert built.settings.poll_interval == timedelta(
        seconds=10
    )  # doubled once, not twice


def test_keywords_win_over_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """File, environment, keyword: the later the stronger."""
    (tmp_path / "slotwise.toml").write_text(
        'poll-interval = "1s"\nthreads = 1\nshutdownGrace = "1s"\n'
    )
    monkeypatch.setenv("SLOTWISE_THREADS", "2")
    monkeypatch.setenv("SLOTWISE_SHUTDOWN_GRACE", "2s")
    settings = JobRegistry(jobs=[tick], shutdown_grace="3s").settings
    assert (
        settings.poll_interval.seconds,
        settings.threads,
        settings.shutdown_grace.seconds,
    ) == (1, 2, 3)


def test_each_attribute_is_read_once() -> None:
    """Also the policies, and also those of a task: what is read again may say something else."""
    read: list[str] = []

    def counted(word: str, value: object) -> property:
        return property(lambda self: read.append(word) or value)

    attributes = {"name": "n", "on_lost": "rerun", "max_lost": 2, "retry": Retry()}
    words = {word: counted(word, value) for word, value in attributes.items()}
    JobRegistry(jobs=[a_job(**words, schedule=counted("schedule", Every("1m")))])
    assert sorted(read) == sorted([*attributes, "schedule"])
    read.clear()
    JobRegistry(tasks=[type("Mail", (SendMail,), words)()])
    assert sorted(read) == sorted(attributes)


def test_properties_and_methods_say_it_as_well() -> None:
    """A method without arguments counts as what it returns."""

    class Computed(NightlyReport):
        @property
        def schedule(self) -> Schedule:  # type: ignore[override]
            return Every("2h")

        def name(self) -> str:  # type: ignore[override]
            return "computed"

        def max_lost(self) -> int:  # type: ignore[override]
            return 7

    (found,) = JobRegistry(jobs=[Computed()]).jobs
    assert (found.name, str(found.schedule), found.max_lost) == (
        "computed",
        str(Every("2h")),
        7,
    )


# -- what it refuses ------------------------------------------------------------------------------


def not_a_context(ctx: JobContext, more: int) -> None:
    """Takes too much."""


class Expensive(NightlyReport):
    def __init__(self, service: object) -> None:
        self.service = service


class Broken(NightlyReport):
    @property
    def schedule(self) -> Schedule:  # type: ignore[override]
        return self._plan  # type: ignore[attr-defined, no-any-return]


class Yielding(NightlyReport):
    def execute(self, ctx: JobContext) -> Any:
        yield 1


class LaterYielding(NightlyReport):
    async def execute(self, ctx: JobContext) -> Any:
        yield 1


class RetryService:
    """A user's own object under a word of ours."""


class Retrying(NightlyReport):
    def retry(self, order: int) -> None:  # type: ignore[override]
        """A user's own method under a word of ours."""


BAD_JOBS = [
    pytest.param(
        {"jobs": None}, "jobs cannot be None; pass a list of jobs", id="jobs None"
    ),
    pytest.param(
        {"tasks": None}, "tasks cannot be None; pass a list of tasks", id="tasks None"
    ),
    pytest.param(
        {"jobs": [None]},
        "a job cannot be None; pass an instance such as",
        id="None among them",
    ),
    pytest.param(
        {"jobs": NightlyReport()}, "pass a list of jobs", id="a job, not a list"
    ),
    pytest.param(
        {"jobs": "tick"},
        "jobs is 'tick'; pass a list of jobs",
        id="a text, not a list",
    ),
    pytest.param({}, "at least one job or task must be registered", id="none at all"),
    pytest.param(
        {"jobs": [tick, tick]}, "more than once: 'tick'", id="the same twice"
    ),
    pytest.param(
        {"jobs": [tick], "tasks": [task(name="tick")(print)]},
        "more than once: 'tick'",
        id="job and task",
    ),
    pytest.param(
        {"jobs": [a_job(name=" ")]},
        "NightlyReport.name is ' '; a name cannot be blank",
        id="blank name",
    ),
    pytest.param(
        {"jobs": [a_job(name="n" * 101)]},
        "has 101 characters; at most 100",
        id="long name",
    ),
    pytest.param(
        {"jobs": [a_job(schedule=None)]},
        "NightlyReport.schedule is nothing; expected",
        id="no schedule",
    ),
    pytest.param(
        {"jobs": [a_job(schedule=3600)]},
        "is 3600; expected a schedule such as",
        id="a number",
    ),
    pytest.param(
        {"jobs": [Expensive]},
        "Expensive is a class and cannot be made without arguments",
        id="a class",
    ),
    pytest.param(
        {"jobs": [print]},
        "is not a job; expected a DistributedJob",
        id="a bare function",
    ),
    pytest.param(
        {"jobs": [tick, 3]},
        "jobs[1]: 3 is not a job; expected a",
        id="a number among them",
    ),
    pytest.param(
        {"jobs": [tick], "tasks": ["x"]}, "tasks[0]: 'x' is not a job;", id="a name"
    ),
    pytest.param(
        {"jobs": [a_job(catchup="none")]},
        "NightlyReport.catchup: did you mean catch_up?",
        id="catchup",
    ),
    pytest.param(
        {"jobs": [a_job(on_loss="rerun")]},
        "NightlyReport.on_loss: did you mean on_lost?",
        id="on_loss",
    ),
    pytest.param(
        {"jobs": [a_job(retry=RetryService())]},
        "NightlyReport.retry is a RetryService, expected Retry or None; write "
        "Retry.exponential(max_attempts=3)",
        id="retry",
    ),
    pytest.param(
        {"jobs": [Retrying()]},
        "retry is a method, expected Retry or None",
        id="a method with arguments",
    ),
    pytest.param(
        {"jobs": [a_job(isolation="thread")]},
        "isolation is 'thread'; expected \"process\"",
        id="isolation",
    ),
    pytest.param(
        {"jobs": [Broken()]},
        "Broken.schedule cannot be read: 'Broken' object has no attribute",
        id="broken",
    ),
    pytest.param(
        {"jobs": [Yielding()]}, "Yielding.execute contains yield", id="generator"
    ),
    pytest.param(
        {"jobs": [LaterYielding()]},
        "LaterYielding.execute contains yield",
        id="async generator",
    ),
    pytest.param(
        {"jobs": [job(name="a", schedule=Every("1m"))(not_a_context)]},  # type: ignore[arg-type]
        "and (more: int) needs some; give each argument a default",
        id="wrong arguments",
    ),
    pytest.param(
        {"jobs": [job(name="a", schedule=Every("1m"), lane=3)(print)]},
        "unknown keyword lane; known are",
        id="keyword",
    ),
    pytest.param(
        {"tasks": [task(name="a", schedule=Every("1m"))(print)]},
        "a one-time task has no slots",
        id="a task with slots",
    ),
]


@pytest.mark.parametrize(("parts", "words"), BAD_JOBS)
def test_what_cannot_work_is_refused(parts: dict[str, Any], words: str) -> None:
    """At the build, in one line with the value and the cure; by constructor and builder in the
    same words.
    """
    with pytest.raises(InvalidJob) as refused:
        JobRegistry(**parts)
    message = str(refused.value)
    assert words in message
    assert "\n" not in message
    with pytest.raises(InvalidJob) as by_builder:
        _built(**parts)
    assert str(by_builder.value) == message


def _built(jobs: Any = (), tasks: Any = ()) -> JobRegistry:
    return JobRegistry.builder().with_jobs(jobs).with_tasks(tasks).build()


BAD_SETTINGS = [
    (
        "poll_interval",
        timedelta(0),
        "poll_interval must be positive and at most 1d (a zero interval would spin)",
    ),
    (
        "poll_interval",
        5,
        "poll_interval must be a duration, but was 5; write for example 10s",
    ),
    ("heartbeat_interval", "0s", "heartbeat_interval must be from 20ms to 1h"),
    (
        "shutdown_grace",
        timedelta(seconds=-1),
        "shutdown_grace must be a duration, but was -1s",
    ),
    (
        "missed_heartbeats_limit",
        2,
        "missed_heartbeats_limit must be a whole number from 3 to 1000, but was 2",
    ),
    ("threads", 0, "threads must be a whole number from 1 to 10000, but was 0"),
    (
        "pollIntervall",
        "1s",
        "pollIntervall is not a setting; did you mean poll_interval?",
    ),
    ("job", [tick], "job is not a setting"),
    ("process_hook", "maybe", "process_hook must be true or false"),
    (
        "database_url",
        5,
        "database_url must be a database address, but was of type int",
    ),
    (
        "database_url",
        "nonsense",
        "the database address is not understood: it begins with neither postgresql:// nor",
    ),
    (
        "wake_up_url",
        "nonsense",
        "wake_up_url: the database address is not understood: it begins with neither",
    ),
    ("database_url", "oracle://u:secret@h/d", "oracle databases are not supported"),
]


@pytest.mark.parametrize(("name", "value", "words"), BAD_SETTINGS)
def test_settings_that_cannot_work(name: str, value: Any, words: str) -> None:
    """Refused at the build, by constructor and builder in the same words."""
    with pytest.raises(InvalidSetting) as refused:
        JobRegistry(jobs=[tick], **{name: value})
    with pytest.raises(InvalidSetting) as by_builder:
        JobRegistry.builder().with_job(tick).settings(**{name: value}).build()
    assert words in str(refused.value)
    assert str(refused.value) == str(by_builder.value)


def test_an_address_of_others_is_refused_when_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DATABASE_URL may be meant for another program, and be outranked; ours is refused at once,
    however it came.
    """
    monkeypatch.setenv("DATABASE_URL", "oracle://u@h/d")
    registry = JobRegistry(jobs=[tick])
    with pytest.raises(InvalidSetting, match="oracle databases are not supported"):
        registry.start()
    registry.configure(database_url="sqlite://")
    with pytest.raises(InvalidSetting, match="the database address is not understood"):
        registry.configure(database_url="nonsense")
    monkeypatch.setenv("SLOTWISE_DATABASE_URL", "nonsense")
    with pytest.raises(InvalidSetting, match="the database address is not understood"):
        JobRegistry(jobs=[tick])


def test_a_grace_of_nothing_is_allowed() -> None:
    """Zero does not wait."""
    assert JobRegistry(
        jobs=[tick], shutdown_grace="0s"
    ).settings.shutdown_grace == timedelta(0)


async def _undecorated() -> AsyncIterator[None]:
    yield


@asynccontextmanager
async def _decorated() -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"customize": 3}, "customize is 3; pass a function"),
        (
            {"customize": lambda settings: None},
            "customize returned NoneType; return the settings",
        ),
        (
            {"lifespan": _undecorated},
            "lifespan _undecorated is not a context manager; put @contextlib",
        ),
        (
            {"lifespan": "life"},
            "lifespan is 'life'; pass the function, without calling it",
        ),
        ({"listeners": [3]}, "listeners: 3 cannot be called"),
        ({"interceptors": ["x"]}, "interceptors: 'x' cannot be called"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_parts_that_cannot_work(parts: dict[str, Any], words: str) -> None:
    """What would fail in a running worker fails at the build."""
    with pytest.raises(ConfigurationError) as refused:
        JobRegistry(jobs=[tick], **parts)
    assert words in str(refused.value)


def test_a_lifespan_is_taken_as_it_is() -> None:
    """The function, not what it returns."""
    assert JobRegistry(jobs=[tick], lifespan=_decorated).hooks.lifespan is _decorated


def test_only_names_of_its_own() -> None:
    """A name that is not registered is said before anything starts."""
    registry = JobRegistry(
        jobs=[tick], tasks=[SendMail], only="tick,tock", database_url="sqlite://"
    )
    with pytest.raises(
        ConfigurationError,
        match=r"only names 'tock', which is not registered; known: send-mail, tick",
    ):
        registry.start()
    assert registry.worker is None


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (None, "no database was named; give --database-url"),
        ("postgresql://u@h/d?sllmode=require", "did you mean sslmode?"),
    ],
)
def test_an_address_that_leads_nowhere(url: str | None, words: str) -> None:
    """What may come later, or only the driver can tell, is left to the start, which says it and
    waits for nothing.
    """
    registry = JobRegistry(jobs=[tick], database_url=url)
    for use in (registry.start, lambda: registry.client.schedule("send-mail")):
        with pytest.raises(SlotwiseError) as refused:
            use()
        assert words in str(refused.value)
    assert registry.worker is None
    assert registry.stop() == 0


# -- what it leaves alone -------------------------------------------------------------------------

UNTOUCHED = """
import logging, os, signal, sys, threading

def state():
    import socket
    return (
        threading.enumerate(), [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)],
        logging.root.handlers[:], logging.root.level, logging.getLogger("slotwise").handlers[:],
        sorted(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else [], sys.path[:],
    )

before = state()
import slotwise
from slotwise import Every, JobRegistry, job
assert "psycopg" not in sys.modules

async def handler(ctx): ...
registry = JobRegistry(
    jobs=[job(name="a", schedule=Every("1s"))(handler)], database_url="postgresql://nobody@192.0.2.1/x"
)
registry.configure(threads=3)
assert state() == before, (before, state())
"""


def test_importing_and_building_touch_nothing(tmp_path: Path) -> None:
    """No thread, no connection, no signal handler, no configuration of logging."""
    subprocess.run(
        [sys.executable, "-c", UNTOUCHED], check=True, cwd=tmp_path, timeout=60
    )


def test_the_first_use_by_many_threads() -> None:
    """All get the same database: connections of another one would be closed by nobody."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            for _ in range(20):
                registry = JobRegistry(jobs=[tick], database_url="sqlite://")
                barrier = threading.Barrier(8)

                def wait_and_ask(
                    _: int,
                    registry: JobRegistry = registry,
                    barrier: threading.Barrier = barrier,
                ) -> object:
                    barrier.wait(30)
                    return registry.database

                used = pool.map(wait_and_ask, range(8))
                assert len(set(used)) == 1
    finally:
        sys.setswitchinterval(interval)


def test_stopping_what_never_started() -> None:
    """Changes nothing."""
    registry = JobRegistry(jobs=[tick], database_url="sqlite://")
    assert registry.stop() == 0
    assert registry.worker is None


def test_start_is_not_for_the_loop_itself() -> None:
    """It would wait for the loop, which would wait for it."""
    import asyncio

    async def host() -> None:
        registry = JobRegistry(jobs=[tick], database_url="sqlite://")
        with pytest.raises(ConfigurationError, match="use: async with registry"):
            registry.start(host_loop=asyncio.get_running_loop())

    asyncio.run(host())


def test_an_incomplete_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs isolated attempts is an entry point; without it, one line says what to do."""
    plugged_in.cache_clear()
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **which: ())
    isolated = job(name="apart", schedule="0 2 * * *", isolation="process")(print)
    registry = JobRegistry(jobs=[isolated], app="shop:registry")
    with pytest.raises(ConfigurationError, match="install it again"):
        registry.make_worker()
