"""Commands that meet somebody else's open transaction on PostgreSQL: they wait, and answer what is
true then.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from tests.store.bench import Bench
from tests.store.waiting import run_into_lock, wait_until_blocked

from slotwise import Item, Receipt


class Rival:
    """An open transaction, and a command that runs into it."""

    def __init__(
        self, bench: Bench, connection: sa.Connection, pool: ThreadPoolExecutor
    ) -> None:
        self.bench, self.connection, self._pool = bench, connection, pool

    def change(self, **values: Any) -> None:
        tasks = self.bench.tables.tasks
        self.connection.execute(
            tasks.update().where(tasks.c.task_instance == "1").values(**values)
        )

    def meet(self, command: Callable[[], Any]) -> Future[Any]:
        """Start the command, and return when it waits for this transaction."""
        return run_into_lock(self.bench, self._pool, command)


@pytest.fixture
def rival(pg_bench: Bench) -> Iterator[Rival]:
    with pg_bench.database.main.connect() as connection, ThreadPoolExecutor(1) as pool:
        yield Rival(pg_bench, connection, pool)


@contextmanager
def told(command: Future[Any], status: str) -> Iterator[None]:
    """The rival's transaction ends in here; then the command answers."""
    yield
    answer = command.result(20)
    assert answer == Receipt(task="mail", id="1", status=status)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("commits", "status"), [(True, "exists"), (False, "scheduled")]
)
def test_two_that_schedule_the_same_id(
    rival: Rival, commits: bool, status: str
) -> None:
    """The second waits for the first one's end, and is the first if that came to nothing."""
    client = rival.bench.client
    client.schedule("mail", 1, id="1", connection=rival.connection)
    with told(
        rival.meet(lambda: client.schedule("mail", 2, id="1", if_exists="keep")),
        status,
    ):
        rival.connection.commit() if commits else rival.connection.rollback()


COMMANDS: dict[str, Callable[[Bench], Receipt]] = {
    "replace": lambda bench: bench.client.schedule(
        "mail", 2, id="1", if_exists="replace"
    ),
    "reschedule": lambda bench: bench.client.reschedule("mail", "1", delay="1h"),
    "cancel": lambda bench: bench.client.cancel("mail", "1"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_row_that_is_claimed_meanwhile(rival: Rival, command: str) -> None:
    """Is running, and keeps its version, due time and data."""
    bench = rival.bench
    bench.client.schedule("mail", 1, id="1")
    rival.change(
        picked=True, picked_by="host:1:a", version=bench.tables.tasks.c.version + 1
    )
    with told(rival.meet(lambda: COMMANDS[command](bench)), "running"):
        rival.connection.commit()
    row = bench.row("mail", "1")
    assert (row.picked, row.task_data, row.execution_time) == (
        True,
        b"1",
        bench.clock.now(),
    )
    assert (row.cancel_requested is not None) == (command == "cancel")
    assert (row.wanted_due is not None) == (command == "reschedule")


@pytest.mark.parametrize("command", ["reschedule", "cancel"])
def test_a_row_that_is_settled_meanwhile(rival: Rival, command: str) -> None:
    """Is gone."""
    bench, tasks = rival.bench, rival.bench.tables.tasks
    bench.client.schedule("mail", 1, id="1")
    bench.claim_one("mail")
    rival.connection.execute(tasks.delete().where(tasks.c.task_instance == "1"))
    with told(rival.meet(lambda: COMMANDS[command](bench)), "gone"):
        rival.connection.commit()


def test_a_row_that_fails_while_it_is_cancelled(rival: Rival) -> None:
    """It waits for its retry when the command gets it: cancelled, not told in vain."""
    bench = rival.bench
    bench.client.schedule("mail", 1, id="1")
    bench.claim_one("mail")
    rival.change(
        picked=False, picked_by=None, version=bench.tables.tasks.c.version + 1
    )
    with told(rival.meet(lambda: COMMANDS["cancel"](bench)), "cancelled"):
        rival.connection.commit()
    assert bench.find("mail", "1") is None


def test_an_interrupt_while_a_copy_waits(rival: Rival) -> None:
    """Ctrl-C is raised at once; the chunk under way is written as a whole, or not at all."""
    client, main = rival.bench.client, threading.get_ident()
    client.schedule("mail", id="1", connection=rival.connection)
    former = signal.signal(signal.SIGUSR1, signal.default_int_handler)

    def interrupt() -> None:
        wait_until_blocked(rival.bench)
        signal.pthread_kill(main, signal.SIGUSR1)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            client.schedule_many("mail", [Item(2, id="1")], copy=True)
    finally:
        interrupter.join(20)
        signal.signal(signal.SIGUSR1, former)
        rival.connection.rollback()
    assert client.schedule("mail", id="2").status == "scheduled"
    assert {line.id for line in client.list("mail")} in ({"2"}, {"1", "2"})


def test_the_next_chunk_is_gathered_while_a_copy_is_written(rival: Rival) -> None:
    """The server waits for somebody's lock, and its client asks for the next item all the same."""
    client = rival.bench.client
    client.schedule("mail", id="1", connection=rival.connection)

    def items() -> Iterator[Item[int]]:
        yield Item(1, id="1")
        wait_until_blocked(rival.bench)
        rival.connection.rollback()
        yield Item(2, id="2")

    assert (
        client.schedule_many("mail", items(), chunk_size=1, copy=True).scheduled == 2
    )
    assert {line.id for line in client.list("mail")} == {"1", "2"}


def test_chunks_that_meet_in_several_ids(pg_bench: Bench) -> None:
    """In any order: none is chosen as the victim of a deadlock."""
    names = [str(number) for number in range(200)]

    def put(order: list[str]) -> None:
        for _ in range(10):
            pg_bench.client.schedule_many(
                "mail", [Item(0, id=name) for name in order], if_exists="replace"
            )

    with ThreadPoolExecutor(4) as pool:
        for one in [pool.submit(put, order) for order in (names, names[::-1]) * 2]:
            one.result(60)
    assert len(pg_bench.client.list("mail", limit=300)) == 200
