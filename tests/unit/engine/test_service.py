"""The discipline around every loop: start, stop, wake, wait; and what it says of an outage."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError
from tests.kit.events import DatabaseBack, Listeners
from tests.kit.loops import AT_ONCE, Common

from slotwise.spi import DatabaseLost, Event, Service

PATIENCE = timedelta(seconds=30)


class Away(Exception):
    """The database is away."""

    connection_invalidated = True


class Loop(Service):
    """Does what it is told in each round, and counts the rounds."""

    def __init__(
        self,
        work: Callable[[], timedelta | None] = lambda: None,
        name: str = "loop",
        *,
        common: Common | None = None,
        listeners: Listeners | None = None,
        **pauses: timedelta,
    ) -> None:
        super().__init__(common or Common(listeners or Listeners(), "w", **pauses))
        self.name = name
        self._work = work
        self.rounds = threading.Semaphore(0)

    def run_once(self) -> timedelta | None:
        try:
            return self._work()
        finally:
            self.rounds.release()

    def has_run(self, times: int = 1) -> bool:
        """Wait for so many further rounds."""
        return all(
            self.rounds.acquire(timeout=PATIENCE.total_seconds()) for _ in range(times)
        )

    def ends(self) -> bool:
        self.stop()
        return self.join(PATIENCE)


def failing(*errors: BaseException) -> Callable[[], timedelta | None]:
    """Raises each in turn, then works."""
    left = list(errors)

    def work() -> timedelta | None:
        if left:
            raise left.pop(0)
        return None

    return work


class StopsWhenCleared(threading.Event):
    """Somebody stops the loop at the very moment when it forgets its wake-up."""

    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self._loop = loop

    def clear(self) -> None:
        self._loop.stop()
        super().clear()


def test_a_stop_is_never_slept_over() -> None:
    """Race: stop() sets both marks between the loop's look at one and its clearing of the
    other.
    """
    loop = Loop()
    loop._wake = StopsWhenCleared(loop)
    loop.start()
    assert loop.join(PATIENCE)


def test_a_wake_up_cuts_the_sleep_short() -> None:
    """None is a sleep without end."""
    loop = Loop()
    loop.start()
    assert loop.has_run()
    loop.wake()
    assert loop.has_run()
    assert loop.ends()


def test_a_wake_up_during_a_round_causes_another_round() -> None:
    """What was put in after the look must not wait for the next wake-up."""
    loop = Loop(
        lambda: loop.wake() if not woken.is_set() and not woken.set() else None
    )
    woken = threading.Event()
    loop.start()
    assert loop.has_run(2)
    assert not loop.rounds.acquire(timeout=0.05)
    assert loop.ends()


def test_a_delay_comes_before_the_first_round() -> None:
    prompt = Loop()
    prompt.delay = timedelta(milliseconds=1)
    prompt.start()
    assert prompt.has_run()
    assert prompt.ends()


def test_a_stop_ends_the_delay() -> None:
    late = Loop()
    late.delay = timedelta(hours=1)
    late.start()
    late.wake()  # no wake-up shortens it
    assert late.ends()
    assert not late.rounds.acquire(blocking=False)


def test_at_once_means_at_once() -> None:
    """Zero is no sleep."""
    loop = Loop(lambda: AT_ONCE)
    loop.start()
    assert loop.has_run(100)
    assert loop.ends()


def test_a_loop_shows_its_progress() -> None:
    """A round that does not end is seen, and so is one that has ended, also in an error."""
    entered, leave = threading.Event(), threading.Event()

    def work() -> None:
        entered.set()
        assert leave.wait(PATIENCE.total_seconds())
        raise ValueError

    loop = Loop(work, first_pause=timedelta(hours=1), longest_pause=timedelta(hours=1))
    assert (loop.busy_since, loop.progress) == (None, None)
    loop.start()
    assert entered.wait(PATIENCE.total_seconds())
    began = loop.busy_since
    assert (began is None, loop.progress) == (False, None)
    leave.set()
    assert loop.ends()
    assert loop.busy_since is None
    assert loop.progress is not None
    assert loop.progress >= began  # type: ignore[operator]


def test_a_second_start_changes_nothing() -> None:
    """One loop, one thread."""
    loop = Loop()
    loop.start()
    thread = loop._thread
    loop.start()
    assert loop._thread is thread
    assert loop.ends()


def test_a_loop_that_was_stopped_before_it_started_does_not_run() -> None:
    """A start that is stopped half-way leaves nothing behind."""
    loop = Loop()
    loop.stop()
    assert loop._stopping.is_set()
    loop.start()
    assert loop.join(PATIENCE)
    assert not loop.rounds.acquire(blocking=False)


def test_a_loop_that_never_started_has_ended() -> None:
    """There is nothing to wait for."""
    assert Loop().join(PATIENCE)


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), SystemExit(3), GeneratorExit()],
    ids=lambda error: type(error).__name__,
)
def test_no_error_ends_a_loop(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker without its heartbeat would lose all it holds."""
    loop = Loop(failing(error), first_pause=timedelta(milliseconds=1))
    loop.start()
    assert loop.has_run(2)
    assert loop.ends()
    assert "loop failed, and continues" in caplog.text


def test_an_error_is_told_with_its_trace_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Then in one line for each further try."""
    loop = Loop(failing(ValueError("one"), ValueError("two"), ValueError("three")))
    for _ in range(4):
        loop._round()
    records = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [bool(record.exc_info) for record in records] == [True, False, False]


def test_pauses_grow_until_it_works() -> None:
    """The first is short, none is longer than the limit and its jitter; after a success they begin
    anew.
    """
    first, longest = timedelta(milliseconds=100), timedelta(seconds=2)
    loop = Loop(failing(*[Away()] * 8), first_pause=first, longest_pause=longest)
    pauses = [loop._round() for _ in range(8)]
    assert all(
        pause is not None and first <= pause <= longest + first for pause in pauses
    )
    assert pauses[0] < 2 * first + first  # type: ignore[operator]
    assert pauses[-1] >= longest  # type: ignore[operator]
    assert loop._round() is None
    loop._work = failing(Away())
    again = loop._round()
    assert again is not None
    assert again <= 2 * first


def test_no_wake_up_shortens_the_pause_of_an_outage() -> None:
    """Race: each handler that ends wakes the settler; a database that is coming back must not be
    stormed.
    """
    loop = Loop(
        failing(Away()),
        first_pause=timedelta(hours=1),
        longest_pause=timedelta(hours=1),
    )
    loop.start()
    assert loop.has_run()
    for _ in range(10):
        loop.wake()
    assert not loop.rounds.acquire(timeout=0.1)
    assert loop.ends()  # but a stop does


def test_an_outage_is_said_once_by_a_worker() -> None:
    """However many loops meet it, however often; and its end when all of them are through."""
    said: list[Event] = []
    common = Common(Listeners((said.append,)), "w")
    first = Loop(failing(Away("gone"), Away("gone")), name="first", common=common)
    second = Loop(failing(Away("gone")), name="second", common=common)
    for loop in (first, second, first):
        loop._round()
    assert said == [DatabaseLost(worker="w", loop="first", error="gone")]
    second._round()
    assert len(said) == 1
    first._round()
    assert said[1:] == [DatabaseBack(worker="w", loop="first")]


@pytest.mark.parametrize("state", ["40001", "40P01", "55P03", "57014", "25P03"])
def test_a_busy_database_is_no_outage(
    state: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A deadlock, a timeout, a conflict of two transactions: tried again, and logged as what it
    was.
    """
    said: list[Event] = []
    error = DBAPIError(
        "SELECT 1", None, psycopg.errors.lookup(state)("somebody was first")
    )
    loop = Loop(
        failing(error),
        listeners=Listeners((said.append,)),
        first_pause=timedelta(0),
        longest_pause=timedelta(milliseconds=1),
    )
    loop.start()
    assert loop.has_run(2)
    assert loop.ends()
    assert said == []
    assert f"the database is busy: somebody was first [{state}]" in caplog.text


def test_a_mistake_is_no_outage() -> None:
    """Whoever recovers from something else does not say that the database is back."""
    said: list[Event] = []
    loop = Loop(
        failing(ValueError(), Away("gone")), listeners=Listeners((said.append,))
    )
    loop._round()
    assert said == []
    loop._round()
    assert [event.name for event in said] == ["database_lost"]
    loop._round()
    assert [event.name for event in said] == ["database_lost", "database_back"]


def test_starts_stops_and_wake_ups_in_any_order() -> None:
    """A hundred loops, each started, woken and stopped by threads of their own: every one ends."""
    loops = [Loop(lambda: timedelta(milliseconds=1)) for _ in range(50)] + [
        Loop() for _ in range(50)
    ]
    barrier = threading.Barrier(6)

    def meddle(turn: int) -> None:
        barrier.wait(PATIENCE.total_seconds())
        for loop in loops:
            (loop.start, loop.wake, loop.stop)[turn % 3]()

    threads = [threading.Thread(target=meddle, args=(turn,)) for turn in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE.total_seconds())
    assert all(loop.join(PATIENCE) for loop in loops)
