"""The threads that run handlers: made as needed, never more than the limit, gone in the end."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest
from tests.kit.loops import Standby, Threads
from tests.kit.patience import PATIENCE

from slotwise.engine.run.tuning import LATE, LOOK, MOST_LATE, SELDOM

#: Looks of a standby thread: how many pieces of work were taken, and how late it looked, in
#: seconds.
ON_TIME, TOO_LATE = LATE / 2, 5 * LATE


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        pytest.param(
            [(7, ON_TIME)], [None], id="called while a handler waits: it joins at once"
        ),
        pytest.param(
            [(8, ON_TIME), (8, ON_TIME)],
            [LOOK, None],
            id="in time, without progress: it joins",
        ),
        pytest.param(
            [(7, TOO_LATE), (9, ON_TIME)],
            [LOOK, LOOK],
            id="late once: another thread had the GIL",
        ),
        pytest.param(
            [(7, TOO_LATE), (7, ON_TIME)],
            [LOOK, None],
            id="late, then in time without progress: it joins",
        ),
        pytest.param(
            [(7, TOO_LATE)] * MOST_LATE,
            [LOOK] * (MOST_LATE - 1) + [None],
            id="late several times in a row: it joins",
        ),
        pytest.param(
            [(7, TOO_LATE)] * (MOST_LATE - 1) + [(8, TOO_LATE)] + [(8, TOO_LATE)],
            [LOOK] * (MOST_LATE + 1),
            id="progress starts the count of late looks anew",
        ),
        pytest.param(
            [(8 + number, ON_TIME) for number in range(5)],
            [LOOK, 2 * LOOK, 4 * LOOK, SELDOM, SELDOM],
            id="while there is progress it looks less and less often",
        ),
        pytest.param(
            [(8, ON_TIME), (9, ON_TIME), (9, TOO_LATE), (10, ON_TIME)],
            [LOOK, 2 * LOOK, LOOK, LOOK],
            id="after a late look it looks again soon",
        ),
    ],
)
def test_when_a_standby_thread_joins(
    looks: list[tuple[int, float]], expected: list[float | None]
) -> None:
    """Only a look in time, or several late ones, prove that the others wait for something else
    than the GIL.
    """
    now = 100.0
    standby, pauses = Standby(7, now), list[float | None]()
    for taken, lateness in looks:
        now += lateness
        pauses.append(standby.pause_after(taken, now))
        now += pauses[-1] or 0.0
    assert pauses == expected


def handler_threads() -> int:
    return sum(
        thread.name.startswith("slotwise-handler") for thread in threading.enumerate()
    )


def test_two_hundred_short_jobs_on_four_threads() -> None:
    """The number of threads is bounded by the limit, not by the number of jobs."""
    threads, seen = Threads(4), set()
    futures = [
        threads.call(lambda: seen.add(threading.current_thread().name))
        for _ in range(200)
    ]
    assert [future.result(PATIENCE) for future in futures] == [None] * 200
    assert 1 <= len(seen) <= 4
    assert len(threads._threads) <= 4
    threads.close()
    for thread in threads._threads:
        thread.join(PATIENCE)
    assert handler_threads() == 0


def test_one_after_the_other_needs_one_thread() -> None:
    """An idle thread is used again before another is made."""
    threads = Threads(8)
    for _ in range(50):
        threads.call(int).result(PATIENCE)
        while (
            not threads._idle
        ):  # the thread says that it is free a moment after the result is there
            threading.Event().wait(0.001)
    assert len(threads._threads) == 1
    threads.close()


def test_as_many_run_at_once_as_there_may_be() -> None:
    """All of them, and no one more."""
    threads, started, go = Threads(3), threading.Semaphore(0), threading.Event()

    def work() -> None:
        started.release()
        go.wait(PATIENCE)

    for _ in range(4):
        threads.submit(work)
    assert all(started.acquire(timeout=PATIENCE) for _ in range(3))
    assert not started.acquire(timeout=0.05)
    go.set()
    assert started.acquire(timeout=PATIENCE)
    threads.close()


def test_what_raises_is_the_callers() -> None:
    """Also a SystemExit: the thread stays, and takes the next."""
    threads = Threads(1)
    with pytest.raises(SystemExit):
        threads.call(lambda: exec("raise SystemExit(1)")).result(PATIENCE)
    assert threads.call(lambda: 7).result(PATIENCE) == 7
    threads.close()


def test_what_was_cancelled_does_not_run() -> None:
    """A caller that has gone away."""
    threads, go = Threads(1), threading.Event()
    threads.submit(lambda: go.wait(PATIENCE) and None)
    late: Future[int] = threads.call(lambda: 7)
    assert late.cancel()
    go.set()
    assert threads.call(lambda: 8).result(PATIENCE) == 8
    threads.close()


def test_the_system_gives_no_thread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Race: a limit on processes is reached for a while. Work waits, nobody dies, and later there
    are threads again.
    """
    threads = Threads(4)
    with monkeypatch.context() as limited:
        limited.setattr(
            threading.Thread,
            "start",
            lambda self: exec("raise RuntimeError('no thread')"),
        )
        first = threads.call(lambda: 1)
        second = threads.call(lambda: 2)
    assert "only 0 of 4 threads" in caplog.text
    third = threads.call(lambda: 3)
    assert [future.result(PATIENCE) for future in (first, second, third)] == [1, 2, 3]
    threads.close()
