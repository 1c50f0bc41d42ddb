"""Bad input is refused in one line, with the value, the place and the cure; nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from tests.contrib.events.shop import Paid, Shop

from slotwise import (
    ConfigurationError,
    InvalidJob,
    InvalidPayload,
    JobRegistry,
    SchemaMissing,
    TaskContext,
    task,
)
from slotwise.contrib.events import Events
from slotwise.spi import Settled


@pytest.fixture
def shop(url: str) -> Iterator[Shop]:
    with Shop(url, "mail") as shop:
        yield shop


@pytest.mark.parametrize(
    ("event", "key", "said"),
    [
        ("order.payed", "a", "'order.payed'; did you mean 'order.paid'"),
        ("", "a", "the event '' is no name; expected 1 to 100"),
        ("x" * 101, "a", "is no name; expected 1 to 100"),
        ("order\npaid", "a", "characters that cannot be printed"),
        (" order.paid", "a", "has blanks around it"),
        ("order.paid", "k" * 201, "has 201 characters; expected 1 to 200"),
        ("order.paid", "", "has 0 characters"),
        ("order.paid", 1.5, "key=1.5 is a float; expected a string, an int or a UUID"),
        ("order.paid", True, "key=True is a bool"),
        ("order.paid", "a\0b", "has a NUL"),
    ],
)
def test_what_cannot_be_published(
    shop: Shop, event: str, key: object, said: str
) -> None:
    with shop.database.transaction() as connection:
        with pytest.raises(ConfigurationError, match="publish") as raised:
            shop.events.publish(connection, event, Paid("a"), key=key)  # type: ignore[arg-type]
        assert said in str(raised.value)
        assert "\n" not in str(raised.value)
        shop.put(connection, "a")  # the caller's transaction stays usable
    assert shop.fan_out().events == 1


@pytest.mark.parametrize("key", [None, 7, UUID(int=7), "ø" * 200, "a'b"])
def test_keys_that_can(shop: Shop, key: str | int | UUID | None) -> None:
    with shop.database.transaction() as connection:
        shop.events.publish(connection, "order.paid", Paid("x"), key=key)
        shop.events.publish(connection, "order.paid", Paid("x", 1), key=key)
    shop.run()
    assert sorted(shop.seen("mail", "x")) == [0, 1]


def test_another_event_is_declared(shop: Shop) -> None:
    shop.events.declare("order.payed")
    with shop.database.transaction() as connection:
        shop.events.publish(connection, "order.payed")
        shop.events.publish(connection, "parcel.lost", {"why": "rain"})  # no typo


def test_data_that_a_handler_cannot_read(shop: Shop) -> None:
    with shop.database.transaction() as connection:
        for data in ({"step": "one"}, object(), "text"):
            with pytest.raises(InvalidPayload):
                shop.events.publish(connection, "order.paid", data)
    assert shop.fan_out().events == 0


def test_without_a_transaction(pg_url: str) -> None:
    with Shop(pg_url, "mail") as shop:
        with pytest.raises(ConfigurationError, match="connection is None; an event"):
            shop.events.publish(None, "order.paid", Paid("a"))
        engine = shop.database.main.execution_options(isolation_level="AUTOCOMMIT")
        with (
            engine.connect() as connection,
            pytest.raises(ConfigurationError, match="commits every statement by"),
        ):
            shop.put(connection, "a")
        assert shop.fan_out().events == 0


def test_without_tables(pg_empty_url: str, pg_url: str) -> None:
    with Shop(pg_url, "mail") as shop:
        shop.execute("DROP TABLE scheduled_events")
        with (
            shop.database.transaction() as connection,
            pytest.raises(SchemaMissing, match="slotwise db upgrade"),
        ):
            shop.put(connection, "a")


def test_a_handler_is_registered_twice() -> None:
    events = Events()

    @events.on("order.paid", name="mail")
    def first(order: int) -> None: ...

    with pytest.raises(InvalidJob, match=r"'mail' is registered already, by .*first"):

        @events.on("order.sent", name="mail")
        def second(order: int) -> None: ...

    with pytest.raises(InvalidJob, match="registered already"):

        @events.on("order.sent", name="post", aliases=["mail"])
        def third(order: int) -> None: ...


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda events: events.on()(_handle), "name the events"),
        (
            lambda events: events.on("a", on_failure="stop")(_handle),
            "on_failure='stop'",
        ),
        (lambda events: events.on("a", name="x")(_as_task), "is a task already"),
        (lambda events: events.on("a")(7), "is no function"),
        (lambda events: events.on("a b\n")(_handle), "cannot be printed"),
    ],
)
def test_declarations_that_cannot_be(
    declare: Callable[[Events], object], said: str
) -> None:
    with pytest.raises((InvalidJob, ConfigurationError), match=said):
        declare(Events())


def _handle(ctx: TaskContext[Paid]) -> None: ...


@task(name="as-task")
def _as_task(ctx: TaskContext[Paid]) -> None: ...


def test_no_handlers_come_after_the_registry() -> None:
    events = Events()
    events.on("order.paid", name="mail")(_handle)
    events.attach(JobRegistry(tasks=events.tasks))
    with pytest.raises(ConfigurationError, match="declare all handlers before it"):
        events.on("order.paid", name="late")
    with pytest.raises(ConfigurationError, match="attached to a registry already"):
        events.attach(JobRegistry(tasks=events.tasks))
    with pytest.raises(ConfigurationError, match=r"call events\.attach"):
        Events().publish(object(), "order.paid")


@dataclass
class _Book:
    title: str


def test_a_call_is_published(shop: Shop) -> None:
    @task(name="mail-of-call")
    def by_arguments(order: str, step: int) -> None: ...

    with shop.database.transaction() as connection:
        call = by_arguments.call("a", step=3)
        shop.events.publish(connection, "order.paid", call, key="a")
        shop.events.publish(connection, "book.read", _Book("Ulysses"))
    shop.run()
    assert shop.seen("mail", "a") == [3]


# -- every kind of connection that schedule takes -------------------------------------------------


def test_a_session(shop: Shop) -> None:
    with Session(shop.database.main) as session, session.begin():
        shop.events.publish(session, "order.paid", Paid("a"), key="a")
    shop.run()
    assert shop.seen("mail", "a") == [0]


def test_connections_of_psycopg(pg_url: str) -> None:
    with Shop(pg_url, "mail") as shop:
        with psycopg.connect(pg_url) as connection:
            number = shop.events.publish(
                connection, "order.paid", Paid("a", 1), key="a"
            )
            assert shop.fan_out().events == 0
        assert number == 1

        async def publish() -> None:
            async with await psycopg.AsyncConnection.connect(pg_url) as own:
                await shop.events.publish_async(
                    own, "order.paid", Paid("a", 2), key="a"
                )

        asyncio.run(publish())
        shop.run()
        assert shop.seen("mail", "a") == [1, 2]


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_asynchronous_connections_of_sqlalchemy(pg_url: str, driver: str) -> None:
    address = sa.make_url(pg_url).set(drivername=f"postgresql+{driver}")

    async def publish(shop: Shop) -> None:
        engine = create_async_engine(address)
        async with engine.begin() as connection:
            await shop.events.publish_async(
                connection, "order.paid", Paid("a", 1), key="a"
            )
        async with AsyncSession(engine) as session, session.begin():
            await shop.events.publish_async(
                session, "order.paid", Paid("a", 2), key="a"
            )
        await engine.dispose()

    with Shop(pg_url, "mail") as shop:
        asyncio.run(publish(shop))
        shop.run()
        assert shop.seen("mail", "a") == [1, 2]


def test_a_task_with_the_number_of_an_event_as_its_id_takes_no_event(
    url: str,
) -> None:
    """An application that handles events with a task which it schedules as well."""
    with Shop(url, "mail") as shop:
        (mail,) = shop.events.tasks
        for id in range(1, 4):
            shop.worker.client.schedule(mail, Paid("own", id), id=str(id))
        shop.worker.client.schedule(mail, Paid("own", 4), id="9" * 30)
        shop.publish("a", 1)
        shop.publish("a", 2)
        shop.run()
        assert sorted(shop.seen("mail", "own")) == [1, 2, 3, 4]
        assert shop.seen("mail", "a") == [1, 2]


@pytest.mark.parametrize("fails", [False, True])
def test_the_applications_own_hook_is_kept(url: str, fails: bool) -> None:
    settled: list[str | None] = []

    def own(rows: Sequence[Settled], tx: sa.Connection) -> None:
        settled.extend(row.id for row in rows)
        if fails:
            raise RuntimeError("the audit is full")

    with Shop(url, "mail", after_settle={"mail": own}) as shop:
        first = shop.publish("a", 0)
        second = shop.publish("a", 1)
        shop.run()
        if fails:
            assert shop.events.repair_owed() == ["mail"]
            shop.run()
        assert settled == [f"event-{first}", f"event-{second}"]
        assert shop.seen("mail", "a") == [0, 1]


def test_another_task_with_the_name_of_a_handler() -> None:
    """It would get the handler's events."""
    events = Events()

    @events.on("order.paid", name="mail")
    def mail(ctx: TaskContext[str]) -> None: ...

    @task(name="mail")
    def other(ctx: TaskContext[str]) -> None: ...

    with pytest.raises(
        ConfigurationError, match=r"'mail', declared by .* another job"
    ):
        events.attach(JobRegistry(tasks=[other]))
    events.attach(JobRegistry(tasks=[one.task for one in events.handlers]))
