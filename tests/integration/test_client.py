"""Scheduling one-time tasks: from anywhere, in anybody's transaction, refused in one line where it
cannot be right.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from tests.integration.hearing import Heard
from tests.kit.patience import PATIENCE
from tests.kit.payloads import PAYLOAD_LIMIT

from slotwise import (
    Client,
    ConfigurationError,
    DistributedJob,
    Every,
    InstanceExists,
    InvalidJob,
    InvalidSetting,
    JobContext,
    JobRegistry,
    OneTimeTask,
    SchemaMissing,
    UnknownTask,
    job,
    task,
)
from slotwise.client.arguments import ID_LIMIT


def nothing(ctx: JobContext) -> None:
    """Returns."""


class SendMail(OneTimeTask):
    name = "send-mail"

    def execute(self, ctx: JobContext) -> None:
        pass


class Nightly(DistributedJob):
    name = "nightly"
    schedule = Every("1h")

    def execute(self, ctx: JobContext) -> None:
        pass


HOURLY = job(name="hourly", schedule=Every("1h"))(nothing)


class Office:
    """A registry that does not run, an engine of the application's own, and what stands in the
    queue.
    """

    def __init__(self, url: str) -> None:
        self.registry = JobRegistry(jobs=[HOURLY], tasks=[SendMail], database_url=url)
        self.client: Client = self.registry.client
        self.application = sa.create_engine(
            url.replace("postgresql://", "postgresql+psycopg://")
        )

    def rows(self) -> list[Any]:
        statement = (
            "select task_name, task_instance, task_data, priority, execution_time "
            "from scheduled_tasks"
        )
        with self.application.connect() as connection:
            return list(connection.exec_driver_sql(statement))

    def close(self) -> None:
        self.application.dispose()
        self.registry.database.close()


@pytest.fixture
def office(url: str) -> Iterator[Office]:
    office = Office(url)
    yield office
    office.close()


# -- what goes in ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "subject",
    [SendMail, SendMail(), task(name="send-mail")(nothing), "send-mail"],
    ids=["class", "instance", "function", "name"],
)
def test_a_task_however_it_is_named(office: Office, subject: Any) -> None:
    """An instance of it with its data, due now; the id is returned."""
    made = office.client.schedule(subject, {"to": "ü", "n": [1, None]}, priority=90)
    ((name, instance, data, priority, _),) = office.rows()
    assert (name, instance, priority) == ("send-mail", made.id, 90)
    assert json.loads(bytes(data)) == {"to": "ü", "n": [1, None]}


def test_a_name_that_this_process_does_not_know(office: Office) -> None:
    """Another service may run it."""
    office.client.schedule("somebody-elses", id="1")
    assert [row[:2] for row in office.rows()] == [("somebody-elses", "1")]


@pytest.mark.parametrize(
    "name",
    ["send-mal", "send-maill", "send-mial", "send_mail", "Send-mail"],
    ids=["less", "more", "swapped", "sign", "case"],
)
def test_a_name_that_is_a_letter_off(office: Office, name: str) -> None:
    """It would wait for ever: it is refused with the name that was meant."""
    for call in (
        lambda: office.client.schedule(name),
        lambda: office.client.schedule_many(name, [1]),
    ):
        with pytest.raises(
            UnknownTask,
            match=f"'{name}'.*: no task of this name is registered; did you mean 'send-mail'",
        ):
            call()
    assert office.rows() == []


def test_a_name_near_another_that_is_meant_all_the_same(office: Office) -> None:
    """Of another service, and declared here; or one of a row of numbers."""
    office.client.schedule(task(name="send-mails")(nothing), id="1")
    numbered = JobRegistry(
        tasks=[task(name="part-1")(nothing)],
        database_url=office.registry.settings.database_url,
    )
    numbered.client.schedule("part-2", id="2")
    numbered.database.close()
    assert sorted(row[0] for row in office.rows()) == ["part-2", "send-mails"]


def due(office: Office) -> timedelta:
    """How far the one row's due time lies from now, by the database's clock."""
    store = office.client._make_store()
    with store.transaction() as connection:
        found = connection.scalar(sa.select(store.tables.tasks.c.execution_time))
        assert found is not None
        return found - store.dialect.now(connection)


SOON = timedelta(seconds=20)


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ({}, timedelta(0)),
        ({"delay": "10m"}, timedelta(minutes=10)),
        ({"delay": timedelta(hours=3)}, timedelta(hours=3)),
        ({"delay": "0s"}, timedelta(0)),
        ({"at": UTC}, timedelta(days=1)),
        ({"at": timezone(timedelta(hours=5))}, timedelta(days=1)),
        ({"at": UTC}, -timedelta(days=1)),
    ],
    ids=[
        "now",
        "in a text",
        "in a timedelta",
        "in nothing",
        "at UTC",
        "at another zone",
        "in the past",
    ],
)
def test_when_it_is_due(
    office: Office, when: dict[str, Any], expected: timedelta
) -> None:
    """By the database's clock; an instant is an instant in any zone."""
    if "at" in when:
        when = {"at": datetime.now(when["at"]) + expected}
    office.client.schedule("send-mail", **when)
    assert abs(due(office) - expected) < SOON


def test_an_id_is_taken_until_its_task_has_gone(office: Office) -> None:
    """Twice is an error, or the first stays, as one likes; afterwards the id is free."""
    assert office.client.schedule("send-mail", 1, id="order 7").id == "order 7"
    with pytest.raises(
        InstanceExists,
        match="'send-mail' with id 'order 7' is already scheduled; choose another id",
    ):
        office.client.schedule("send-mail", 2, id="order 7", if_exists="raise")
    kept = office.client.schedule("send-mail", 3, id="order 7")
    assert (kept.id, kept.status) == ("order 7", "exists")
    assert [bytes(row[2]) for row in office.rows()] == [b"1"]
    office.client.cancel("send-mail", "order 7")
    office.client.schedule("send-mail", 4, id="order 7")
    assert [bytes(row[2]) for row in office.rows()] == [b"4"]


def test_the_largest_payload_and_the_longest_id(office: Office) -> None:
    """The limits are included."""
    office.client.schedule("send-mail", "x" * (PAYLOAD_LIMIT - 2), id="i" * ID_LIMIT)
    assert len(office.rows()) == 1


# -- in the caller's transaction ------------------------------------------------------------------


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
def test_the_row_is_there_if_and_only_if_the_callers_transaction_commits(
    office: Office, commits: bool
) -> None:
    """With the order it belongs to, or neither."""
    with office.application.connect() as connection:
        transaction = connection.begin()
        office.client.schedule("send-mail", connection=connection)
        if commits:
            transaction.commit()
        else:
            transaction.rollback()
    assert len(office.rows()) == int(commits)


@pytest.mark.parametrize("kind", ["session", "scoped session"])
@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
def test_a_session_will_do(office: Office, kind: str, commits: bool) -> None:
    """Its transaction is the one."""
    session: Any = Session(office.application)
    if kind == "scoped session":
        session = scoped_session(sessionmaker(office.application))
    office.client.schedule("send-mail", connection=session)
    if commits:
        session.commit()
    else:
        session.rollback()
    session.close()
    assert len(office.rows()) == int(commits)


def test_a_taken_id_leaves_the_callers_transaction_as_it_was(office: Office) -> None:
    """It is an error of ours, not of the database: the caller may go on."""
    office.client.schedule("send-mail", id="1")
    with office.application.begin() as connection:
        with pytest.raises(InstanceExists):
            office.client.schedule(
                "send-mail", id="1", if_exists="raise", connection=connection
            )
        office.client.schedule("send-mail", id="2", connection=connection)
    assert len(office.rows()) == 2


class AsyncSession:
    """By its name: sqlalchemy[asyncio] need not be installed."""

    async def connection(self) -> None:
        """Never awaited."""


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            3,
            "int cannot be joined; pass a Connection or Session of SQLAlchemy, a "
            "connection of psycopg, or "
            "django.db.connection",
        ),
        (
            sa.create_engine("sqlite://"),
            "connection= is an Engine, which has no transaction; write: with "
            "engine.begin() as connection, and pass "
            "connection=connection",
        ),
        (
            AsyncSession(),
            "AsyncSession cannot be used from here; await client.aio.…(…, connection=…)",
        ),
    ],
    ids=["a number", "an engine", "an async session"],
)
def test_what_is_no_connection(office: Office, given: Any, words: str) -> None:
    """Said with what would do."""
    with pytest.raises(ConfigurationError) as refused:
        office.client.schedule("send-mail", connection=given)
    assert words in str(refused.value)


def test_a_connection_to_another_kind_of_database(pg_url: str) -> None:
    """The row would go where no worker looks."""
    office, elsewhere = Office(pg_url), sa.create_engine("sqlite://")
    with (
        elsewhere.connect() as connection,
        pytest.raises(ConfigurationError, match="leads to sqlite, the tables are in"),
    ):
        office.client.schedule("send-mail", connection=connection)
    elsewhere.dispose()
    office.close()


def test_a_connection_that_commits_by_itself(pg_url: str) -> None:
    """What it did would stand, whatever became of the caller's own; within a transaction of
    psycopg's it joins that.
    """
    office = Office(pg_url)
    by_itself = office.application.execution_options(isolation_level="AUTOCOMMIT")
    with (
        psycopg.connect(pg_url, autocommit=True) as driver,
        by_itself.connect() as connection,
    ):
        for given in (driver, connection):
            with pytest.raises(
                ConfigurationError,
                match=r"AUTOCOMMIT.*; pass one with a transaction, or none",
            ):
                office.client.schedule("send-mail", connection=given)
        with driver.transaction(force_rollback=True):
            office.client.schedule("send-mail", connection=driver)
    assert office.rows() == []
    office.close()


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_a_database_without_tables(
    kind: str, pg_empty_url: str, tmp_path: Path
) -> None:
    """Whether it is the registry's own, or the caller's."""
    office = Office(
        pg_empty_url if kind == "postgresql" else f"sqlite:///{tmp_path / 'empty.db'}"
    )
    with office.application.connect() as connection:
        for given in (None, connection):
            with pytest.raises(
                SchemaMissing,
                match=r"the tables scheduled_\* are missing in this database; .* db upgrade",
            ):
                office.client.schedule("send-mail", connection=given)
    office.close()


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"task": None}, InvalidJob, "None is not a task; pass a OneTimeTask"),
        ({"task": " "}, InvalidJob, "' ' is not a task"),
        (
            {"task": nothing},
            InvalidJob,
            "is not a task; pass a OneTimeTask, a function under @task, or a name",
        ),
        (
            {"task": Nightly},
            InvalidJob,
            "'nightly' is a job, its schedule says when it runs",
        ),
        ({"task": HOURLY}, InvalidJob, "'hourly' is a job"),
        ({"task": "hourly"}, InvalidJob, "'hourly' is a job"),
        ({"id": ""}, ConfigurationError, "an id cannot be blank"),
        ({"id": "  "}, ConfigurationError, "an id cannot be blank"),
        (
            {"id": "recurring"},
            ConfigurationError,
            "id='recurring'): this id is reserved for job rows; choose another",
        ),
        ({"id": "trigger:1"}, ConfigurationError, "this id is reserved for job rows"),
        (
            {"id": 7},
            ConfigurationError,
            "schedule('send-mail', id=7): an id is a string; write id='7'",
        ),
        (
            {"id": "x" * 251},
            ConfigurationError,
            "an id has at most 250 characters, this one has 251",
        ),
        ({"id": "a\x00b"}, ConfigurationError, "control characters are not allowed"),
        (
            {"at": datetime(2026, 1, 1)},  # noqa: DTZ001
            ConfigurationError,
            "the instant has no zone; e.g. at=datetime(…, tzinfo=UTC)",
        ),
        ({"at": date(2026, 1, 1)}, ConfigurationError, "expected a datetime"),
        ({"at": "tomorrow"}, ConfigurationError, "expected a datetime"),
        (
            {"at": datetime(9999, 1, 1, tzinfo=UTC)},
            ConfigurationError,
            "must lie in the years 1900 to 8999",
        ),
        (
            {"at": datetime.min.replace(tzinfo=UTC)},
            ConfigurationError,
            "must lie in the years 1900 to 8999",
        ),
        (
            {"at": datetime(2026, 1, 1, tzinfo=UTC), "delay": "1s"},
            ConfigurationError,
            "both at and delay are given",
        ),
        ({"delay": 5}, InvalidSetting, "5 has no unit"),
        (
            {"delay": "-1s"},
            InvalidSetting,
            "schedule('send-mail', delay='-1s'): '-1s': a duration is never negative",
        ),
        (
            {"delay": timedelta(seconds=-1)},
            InvalidSetting,
            "): -1s is negative; write a duration of zero or more",
        ),
        ({"delay": timedelta.max}, InvalidSetting, "longer than 36500 days"),
        ({"priority": "high"}, ConfigurationError, "priority='high'): a whole number"),
        ({"priority": True}, ConfigurationError, "a whole number"),
        ({"priority": 40_000}, ConfigurationError, "a whole number"),
        (
            {"if_exists": "skip"},
            ConfigurationError,
            "if_exists='skip'): write one of keep, raise, replace, reschedule",
        ),
        (
            {"data": {1, 2}},
            InvalidJob,
            "the data for task 'send-mail' cannot be written as JSON",
        ),
        (
            {"data": datetime(2026, 1, 1, tzinfo=UTC)},
            InvalidJob,
            "is of type datetime, which JSON cannot express",
        ),
        ({"data": float("nan")}, InvalidJob, "cannot be written as JSON"),
        (
            {"data": "x" * PAYLOAD_LIMIT},
            InvalidJob,
            "at most 1048576 are allowed; store it elsewhere",
        ),
    ],
    ids=lambda value: (
        ", ".join(f"{name}={text!r:.24}" for name, text in value.items())
        if isinstance(value, dict)
        else ""
    ),
)
def test_what_cannot_be_right(
    sqlite_url: str, arguments: dict[str, Any], kind: type[Exception], words: str
) -> None:
    """In one line, with the value and the cure; and nothing is written."""
    office = Office(sqlite_url)
    with pytest.raises(kind) as refused:
        office.client.schedule(**{"task": "send-mail"} | arguments)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert office.rows() == []
    office.close()


def test_data_that_contains_itself(sqlite_url: str) -> None:
    """Not a crash."""
    office, endless = Office(sqlite_url), []  # type: ignore[var-annotated]
    endless.append(endless)
    with pytest.raises(InvalidJob, match="cannot be written as JSON"):
        office.client.schedule("send-mail", endless)
    office.close()


# -- with a worker --------------------------------------------------------------------------------


def test_from_inside_a_handler(url: str, heard: Heard) -> None:
    """ctx.client: one task leads to the next, with what it was given; functions and coroutines."""
    arrived: list[Any] = []

    def first(ctx: JobContext) -> None:
        ctx.client.schedule("second", {"from": ctx.name, "data": ctx.data})

    async def second(ctx: JobContext) -> None:
        await asyncio.to_thread(ctx.client.schedule, "third", ctx.data)

    third = task(name="third")(lambda ctx: arrived.append(ctx.data))
    registry = JobRegistry(
        tasks=[task(name="first")(first), task(name="second")(second), third],
        listeners=[heard],
        database_url=url,
        process_hook=False,
    )
    with registry:
        registry.client.schedule("first", [1, {"ü": None}])
        heard.wait("settled", 3)
    assert arrived == [{"from": "first", "data": [1, {"ü": None}]}]


def test_a_worker_in_this_process_need_not_be_polled_for(
    url: str, heard: Heard
) -> None:
    """What is due now starts now, though the next poll is an hour away."""
    registry = JobRegistry(
        tasks=[SendMail],
        listeners=[heard],
        database_url=url,
        process_hook=False,
        poll_interval="1h",
    )
    with registry:
        heard.wait("poll_begin")
        registry.client.schedule(SendMail)
        heard.wait("settled")


def test_clients_in_many_threads(url: str) -> None:
    """One client, any number of threads: each row once."""
    office = Office(url)
    barrier = threading.Barrier(8)

    def schedule(number: int) -> None:
        barrier.wait(PATIENCE)
        for each in range(10):
            office.client.schedule("send-mail", id=f"{number}-{each}")
            office.client.schedule("send-mail", id=f"shared {each}", if_exists="keep")

    threads = [
        threading.Thread(target=schedule, args=(number,)) for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(office.rows()) == 90
    office.close()


def test_an_id_that_is_used_again_is_another_task(url: str, heard: Heard) -> None:
    """Its token rises and its idempotency key differs, though the row is born again."""
    keys: list[tuple[str, int]] = []
    registry = JobRegistry(
        tasks=[
            task(name="mail")(
                lambda ctx: keys.append((ctx.idempotency_key, ctx.token))
            )
        ],
        listeners=[heard],
        database_url=url,
        process_hook=False,
    )
    with registry:
        for count in (1, 2):
            registry.client.schedule("mail", id="7")
            heard.wait("settled", count)
    (first, token), (second, later) = keys
    assert first != second
    assert later > token
