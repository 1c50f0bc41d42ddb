"""What becomes due by somebody else's hand starts at once, though the next poll is an hour away;
never needed.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from tests.databases import Databases
from tests.faults.proxy import CAN_CUT, Proxy
from tests.integration.hearing import Heard
from tests.kit.connections import PAUSE
from tests.kit.events import Listeners
from tests.kit.loops import Common, WakeUp
from tests.kit.patience import PATIENCE
from tests.kit.store import Store

from slotwise import (
    BulkResult,
    Calendar,
    Cron,
    Every,
    Item,
    JobContext,
    JobRegistry,
    Once,
    Settings,
    job,
    task,
)
from slotwise.client.bulk import GATHER
from slotwise.operations import Calendars
from slotwise.spi import Database, Worker, database_url

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
COMMON = Common(Listeners(), "host:1:a")


def nothing(ctx: JobContext) -> None:
    """Returns."""


def fails_at_first(ctx: JobContext) -> None:
    if not ctx.data:
        raise RuntimeError("no data")


mail = task(name="mail")(nothing)
dead = task(name="dead", retry=None)(fails_at_first)
rare = job(name="rare", schedule=Every("1d"))(nothing)
open_days = job(name="open-days", schedule=Cron("* * * * * *").excluding("closed"))(
    nothing
)
rows = job(name="rows", schedule=Every("1d"))(nothing)


@task(name="leads-on")
def leads_on(ctx: JobContext) -> None:
    ctx.then("mail")


def until_quiet(registry: JobRegistry, heard: Heard) -> None:
    """Until its worker listens, and has looked around since: nothing is left that might wake
    it.
    """
    for _ in range(600):
        looks = len(heard.of("poll_begin"))
        threading.Event().wait(0.1)
        is_listening = (
            registry.worker is not None and registry.worker.wake_up.is_listening
        )
        if is_listening and looks == len(heard.of("poll_begin")):
            return
    raise AssertionError("nobody listens")


class Scene:
    """A worker that polls once in an hour, and a client of another process, for all that it
    knows.
    """

    def __init__(self, url: str, *subjects: Any, **settings: Any) -> None:
        self.url, self.heard = url, Heard()
        options = {
            "poll_interval": "1h",
            "database_url": url,
            "process_hook": False,
            **settings,
        }
        jobs = [one for one in subjects if hasattr(one, "schedule")]
        tasks = [one for one in subjects if not hasattr(one, "schedule")]
        self.worker = JobRegistry(
            jobs=jobs, tasks=tasks, listeners=[self.heard], **options
        )
        self.elsewhere = JobRegistry(jobs=jobs, tasks=tasks, **options)
        self.client = self.elsewhere.client
        if open_days in jobs:
            close(self, 3)
        self.worker.start()

    def close(self) -> None:
        self.worker.stop()
        self.elsewhere.database.close()

    def settled(self) -> int:
        return len(self.heard.of("settled", outcome="succeeded"))

    def listeners(self) -> list[int]:
        """The server's processes that serve a listener."""
        with psycopg.connect(self.url) as connection:
            found = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = "
                "current_database() AND query LIKE 'LISTEN%'"
            )
            return [pid for (pid,) in found]

    def until_it_listens(self) -> int:
        until_quiet(self.worker, self.heard)
        return self.listeners()[0]


@pytest.fixture(scope="module")
def scene(databases: Databases) -> Iterator[Scene]:
    """One for all that is done from elsewhere."""
    with databases.provisioned() as url:
        made = Scene(url, mail, dead, rare, open_days, leads_on)
        made.until_it_listens()
        yield made
        made.close()


def in_a_connection(scene: Scene) -> None:
    engine = sa.create_engine(database_url(scene.url))
    with engine.begin() as connection:
        scene.client.schedule(mail, connection=connection)
    engine.dispose()


def in_psycopg(scene: Scene) -> None:
    with psycopg.connect(scene.url) as connection:
        scene.client.schedule_many(mail, [None], connection=connection)


def copied_in_psycopg(scene: Scene) -> None:
    with psycopg.connect(scene.url) as connection:
        scene.client.schedule_many(mail, [None], copy=True, connection=connection)


def in_an_async_connection(scene: Scene) -> None:
    async def main() -> None:
        engine = create_async_engine(database_url(scene.url))
        async with engine.begin() as connection:
            await scene.client.aio.schedule(mail, connection=connection)
        await engine.dispose()

    asyncio.run(main())


def moved(scene: Scene) -> None:
    scene.client.schedule(mail, id="later", delay="2h")
    scene.client.reschedule(mail, "later")


def moved_in_a_connection(scene: Scene) -> None:
    scene.client.schedule(mail, id="later", delay="2h")
    with psycopg.connect(scene.url) as connection:
        scene.client.reschedule(mail, "later", connection=connection)


def retried(scene: Scene) -> None:
    scene.client.schedule(dead, id="7")
    scene.heard.wait("settled", outcome="dead")
    with psycopg.connect(scene.url) as connection:
        connection.execute(
            "UPDATE scheduled_tasks SET task_data = '1' WHERE task_name = 'dead'"
        )
    scene.client.retry(dead)


def recurs(scene: Scene) -> None:
    scene.client.schedule_recurring(mail, "each-second", Every("1s"))
    scene.heard.wait("settled", scene.settled() + 1, outcome="succeeded")
    scene.client.unschedule_recurring(mail, "each-second")


def resumed(scene: Scene) -> None:
    scene.client.operations.pause("rare")
    scene.client.operations.trigger("rare")
    scene.client.operations.resume("rare")


def plan(scene: Scene, again: Any) -> None:
    """As another worker does at its start."""
    deployed = JobRegistry(jobs=[again], database_url=scene.url, process_hook=False)
    Worker(
        deployed.settings,
        deployed.definitions,
        database=deployed.database,
    ).sign_in.plan()
    deployed.database.close()


def planned_anew(scene: Scene) -> None:
    before = scene.settled()
    plan(
        scene,
        job(
            name="rare", schedule=Once(datetime.now(UTC) + timedelta(milliseconds=200))
        )(nothing),
    )
    scene.heard.wait("settled", before + 1, outcome="succeeded")
    plan(scene, rare)


def close(scene: Scene, days: int) -> None:
    """Let nobody work for so many days from now on."""
    today = datetime.now(UTC).date()
    closed = Calendar(
        name="closed",
        weekend=frozenset(),
        days=frozenset(today + timedelta(n) for n in range(days)),
    )
    store = Store(scene.elsewhere.database, scene.elsewhere.definitions)
    Calendars(store, "tester").change("closed", lambda before: closed, "test")


def run_alone(scene: Scene) -> None:
    """Of a job that has no row yet: it is planned first, and the others are to run what
    follows.
    """
    before = scene.settled()
    with psycopg.connect(scene.url) as connection:
        # The guard against other programs keeps rows that are neither dead nor deleted.
        deleted = "scheduled_tasks SET state = 'deleted' WHERE task_name = 'rare'"
        connection.execute(f"UPDATE {deleted}".encode())
        connection.execute("DELETE FROM scheduled_tasks WHERE task_name = 'rare'")
    soon = job(name="rare", schedule=Once(datetime.now(UTC) + timedelta(seconds=1)))(
        nothing
    )
    heard = Heard()
    alone = JobRegistry(
        jobs=[soon], listeners=[heard], database_url=scene.url, process_hook=False
    )
    assert alone.single_run("rare").run().succeeded
    alone.database.close()
    assert [event.change for event in heard.of("planned")] == ["added"]
    scene.heard.wait("settled", before + 1, outcome="succeeded")
    plan(scene, rare)


def left_behind_elsewhere(scene: Scene) -> None:
    """By a task that the others do not know."""

    @task(name="leads-off")
    def leads_off(ctx: JobContext) -> None:
        ctx.then("mail")

    before = scene.settled()
    with JobRegistry(
        tasks=[leads_off], database_url=scene.url, process_hook=False
    ) as elsewhere:
        elsewhere.client.schedule(leads_off)
        scene.heard.wait(
            "settled", before + 1, outcome="succeeded"
        )  # before its drain tells everybody to look


def with_a_calendar_changed(scene: Scene) -> None:
    """Days off are taken back, and come again after the slot."""
    before = scene.settled()
    close(scene, 0)
    scene.heard.wait("settled", before + 1, outcome="succeeded")
    close(scene, 3)


FROM_ELSEWHERE: dict[str, Callable[[Scene], Any]] = {
    "schedule": lambda scene: scene.client.schedule(mail),
    "schedule-soon": lambda scene: scene.client.schedule(
        mail, at=datetime.now(UTC) + timedelta(milliseconds=200)
    ),
    "schedule-many": lambda scene: scene.client.schedule_many(mail, [None]),
    "schedule-many-late": lambda scene: scene.client.schedule_many(
        mail, [Item(None, at=LONG_AGO)], delay="2h"
    ),
    "copy": lambda scene: scene.client.schedule_many(mail, [None], copy=True),
    "awaited": lambda scene: asyncio.run(scene.client.aio.schedule(mail)),
    "connection": in_a_connection,
    "psycopg": in_psycopg,
    "psycopg-copy": copied_in_psycopg,
    "async-connection": in_an_async_connection,
    "reschedule": moved,
    "reschedule-in-connection": moved_in_a_connection,
    "retry": retried,
    "recurring": recurs,
    "trigger": lambda scene: scene.client.operations.trigger("rare"),
    "resume": resumed,
    "then": lambda scene: scene.client.schedule(leads_on),
    "then-elsewhere": left_behind_elsewhere,
    "planned": planned_anew,
    "calendar": with_a_calendar_changed,
    "run-alone": run_alone,
}


@pytest.mark.parametrize("happens", FROM_ELSEWHERE.values(), ids=FROM_ELSEWHERE)
def test_it_starts_at_once(scene: Scene, happens: Callable[[Scene], Any]) -> None:
    """Whoever makes a row due, and in whatever transaction."""
    before = scene.settled()
    happens(scene)
    scene.heard.wait("settled", before + 1, outcome="succeeded")
    with psycopg.connect(scene.url) as connection:
        connection.execute(
            "DELETE FROM scheduled_tasks WHERE NOT picked AND schedule IS NULL"
        )


def test_a_handler_is_told_at_once_that_it_is_cancelled(pg_url: str) -> None:
    """Not only with its worker's next heartbeat."""
    entered, told = threading.Event(), threading.Event()

    @task(name="long")
    def long(ctx: JobContext) -> None:
        entered.set()
        if ctx.wait(timedelta(seconds=PATIENCE)):
            told.set()
            ctx.check()

    with closing(Scene(pg_url, long, heartbeat_interval="1h")) as scene:
        scene.until_it_listens()
        scene.client.schedule(long, id="7")
        assert entered.wait(PATIENCE)
        assert scene.client.cancel(long, "7").status == "running"
        assert told.wait(PATIENCE)


# -- what is said ---------------------------------------------------------------------------------


def test_one_word_per_transaction_and_only_of_what_is_due_soon(pg_url: str) -> None:
    """Rows that a poll finds in time, or that wait for others, wake nobody."""
    registry = JobRegistry(tasks=[mail], database_url=pg_url, process_hook=False)
    with (
        psycopg.connect(pg_url, autocommit=True) as ear,
        psycopg.connect(pg_url) as connection,
    ):
        ear.execute("LISTEN scheduled_wake")
        client = registry.client
        client.schedule(mail, delay="1h")
        client.schedule(mail, countdown=1)
        client.schedule_many(mail, [None], delay="1h")
        client.schedule(mail, delay="1h", connection=connection)
        client.schedule(mail, countdown=1, connection=connection)
        client.schedule_many(mail, [None], delay="1h", connection=connection)
        connection.commit()
        for _ in range(3):
            client.schedule(mail, connection=connection)
        client.schedule_many(mail, [None, None], connection=connection)
        connection.commit()
        connection.execute("NOTIFY scheduled_wake, 'last'")
        connection.commit()
        assert [
            notify.payload for notify in ear.notifies(timeout=PATIENCE, stop_after=2)
        ] == ["mail", "last"]
    registry.database.close()


@pytest.mark.extended
def test_many_words_of_a_process_become_few(pg_url: str) -> None:
    """The first at once, then one at the end of each pause: none is lost, most are one."""
    registry = JobRegistry(tasks=[mail], database_url=pg_url, process_hook=False)
    with psycopg.connect(pg_url, autocommit=True) as ear:
        ear.execute("LISTEN scheduled_wake")
        begun = time.monotonic()
        registry.client.schedule(mail)
        for _ in range(1000):
            registry.database.wake_ups.tell("mail")
        registry.client.schedule("another")
        registry.database.close()
        pauses = timedelta(seconds=time.monotonic() - begun) / PAUSE
        said: list[str] = []
        for notify in ear.notifies(timeout=PATIENCE):
            said.append(notify.payload)
            if notify.payload == "another":
                break
        said += [notify.payload for notify in ear.notifies(timeout=0)]
    assert {"mail", "another"} == set(said)
    assert said[-1] == "another"
    assert len(said) <= min(2 * pauses + 3, 999)


@pytest.mark.extended
def test_many_chunks_say_little(pg_url: str) -> None:
    """The first at once, the others in lumps; the last is not forgotten."""
    registry = JobRegistry(tasks=[mail], database_url=pg_url, process_hook=False)
    with psycopg.connect(pg_url, autocommit=True) as ear:
        ear.execute("LISTEN scheduled_wake")
        said: list[int] = []

        def listen(tally: BulkResult) -> None:
            if tally.scheduled in (1, 50):
                said.append(len(list(ear.notifies(timeout=PATIENCE, stop_after=1))))

        begun = time.monotonic()
        registry.client.schedule_many(mail, [None] * 50, chunk_size=1, progress=listen)
        registry.database.close()
        lumps = timedelta(seconds=time.monotonic() - begun) / GATHER
        assert all(said)
        assert sum(said) + len(list(ear.notifies(timeout=0))) <= min(lumps + 3, 49)


# -- never needed ---------------------------------------------------------------------------------


@pytest.mark.parametrize("worker_too", [True, False], ids=["off", "never-said"])
def test_polls_find_it(pg_url: str, worker_too: bool) -> None:
    """Switched off, or said by nobody: what is due runs at the next poll. Off, nobody listens."""
    with closing(
        Scene(
            pg_url, mail, poll_interval="200ms", wake_up="off" if worker_too else "on"
        )
    ) as scene:
        silent = JobRegistry(
            tasks=[mail], database_url=pg_url, process_hook=False, wake_up="off"
        )
        with psycopg.connect(pg_url, autocommit=True) as ear:
            ear.execute("LISTEN scheduled_wake")
            for number in range(3):
                silent.client.schedule(mail)
                scene.heard.wait("settled", number + 1)
            assert "mail" not in [notify.payload for notify in ear.notifies(timeout=0)]
        silent.database.close()
        assert bool(scene.worker.database.hears) is not worker_too


def test_it_listens_again_and_looks_for_what_it_has_missed(pg_url: str) -> None:
    """Its connection ends, and a row becomes due without a word: it is found as soon as somebody
    listens again.
    """
    with closing(Scene(pg_url, mail)) as scene:
        pid = scene.until_it_listens()
        with psycopg.connect(pg_url, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
        silent = JobRegistry(
            tasks=[mail], database_url=pg_url, process_hook=False, wake_up="off"
        )
        silent.client.schedule(mail)
        silent.database.close()
        scene.heard.wait("settled")
        assert scene.until_it_listens() != pid
        scene.client.schedule(mail)
        scene.heard.wait("settled", 2)


@pytest.mark.extended
@pytest.mark.skipif(not CAN_CUT, reason="a black hole takes Linux")
def test_a_black_hole_is_noticed_and_left(pg_url: str) -> None:
    """Nothing comes and nothing ends the connection: keepalives do, and it is made again."""
    with (
        Proxy(pg_url) as proxy,
        closing(
            Scene(pg_url, mail, wake_up_url=proxy.url, heartbeat_interval="1s")
        ) as scene,
    ):
        pid = scene.until_it_listens()
        proxy.cut()
        scene.client.schedule(mail)  # a word that gets lost
        while (
            scene.worker.worker is not None
            and scene.worker.worker.wake_up.is_listening
        ):
            threading.Event().wait(0.05)
        proxy.heal()
        scene.heard.wait("settled")
        assert scene.until_it_listens() != pid


def test_who_drains_tells_the_others(pg_url: str) -> None:
    """A row that it hands back, and slots of which it alone knows when they are due."""
    entered, go_on = threading.Event(), threading.Event()

    @task(name="long")
    def long(ctx: JobContext) -> None:
        entered.set()
        while not ctx.wait("50ms") and not go_on.is_set():
            pass
        ctx.check()

    with closing(Scene(pg_url, long, shutdown_grace="0s")) as scene:
        scene.until_it_listens()
        scene.client.schedule(long)
        assert entered.wait(PATIENCE)
        heard = Heard()
        other = JobRegistry(
            tasks=[long],
            listeners=[heard],
            database_url=pg_url,
            process_hook=False,
            poll_interval="1h",
        )
        with other:
            until_quiet(other, heard)
            scene.worker.stop()
            heard.wait("claimed")
            go_on.set()


class _Stopping(Database):
    """Whoever is to be told by it is stopped instead."""

    def notify(self, words: Sequence[str]) -> None:
        self.stop()

    def stop(self) -> None: ...


def test_a_stop_while_it_waits_for_its_own_word(pg_url: str) -> None:
    """It is the moment between LISTEN and the first word: the bell that rings then is heard
    afterwards, too.
    """
    with closing(_Stopping(Settings(database_url=pg_url))) as database:
        ear = WakeUp(COMMON, database, names=[], wake=lambda words: None)
        database.stop = ear.stop  # type: ignore[method-assign]
        ear.start()
        assert ear.join(timedelta(seconds=10))


@pytest.mark.extended
def test_where_words_do_not_get_through_it_gives_up(
    pg_url: str, pg_empty_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Behind a pooler, or in another database, nothing is heard, not even its own word: it says
    so, and rests.
    """
    with closing(
        Database(Settings(database_url=pg_url, wake_up_url=pg_empty_url))
    ) as database:
        common = Common(
            Listeners(), "host:1:a", elapsed=itertools.count(0, 10).__next__
        )
        ear = WakeUp(common, database, names=[], wake=lambda words: None)
        assert ear.run_once() == timedelta(minutes=5)
        assert not ear.is_listening
        assert [
            record.getMessage().partition(":")[0] for record in caplog.records
        ] == ["wake-ups are off, due rows are found by polls"]


def test_words_about_what_others_run_wake_nobody(pg_url: str) -> None:
    """Tasks that this worker does not know are not its business."""
    heard: list[Sequence[str]] = []
    with closing(Database(Settings(database_url=pg_url))) as database:

        def wake(words: Collection[str]) -> None:
            heard.append([*words])
            database.notify(["yours" if len(heard) == 1 else "mine"])

        ear = WakeUp(COMMON, database, names=["mine"], wake=wake)
        ear.run_once()  # looks, as it listens now, and hears of yours
        database.notify(["mine"])
        ear.run_once()
        assert heard == [[], ["mine"]]
        ear._deafen()
