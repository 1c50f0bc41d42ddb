"""Signals become calls on a thread, and the former handlers come back."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Iterator

import pytest
from tests.kit.patience import PATIENCE

from slotwise.contrib.processes.signals import NUMBERS, StopSignals
from slotwise.engine.process.signals import StopRequests


@pytest.fixture(autouse=True)
def _former_handlers() -> Iterator[None]:
    former = {number: signal.getsignal(number) for number in NUMBERS}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


def test_reaction() -> None:
    """Each signal is one call, on a thread, with its count; a lock that the main thread holds is
    no danger.
    """
    calls: queue.SimpleQueue[tuple[int, int, bool]] = queue.SimpleQueue()
    lock, times = threading.Lock(), iter([0.0, 2.0])

    def react(number: int, count: int) -> None:
        with lock:
            calls.put(
                (number, count, threading.current_thread() is threading.main_thread())
            )

    with StopSignals(react, elapsed=lambda: next(times)) as signals:
        with lock:
            os.kill(os.getpid(), signal.SIGTERM)
        assert calls.get(timeout=PATIENCE) == (signal.SIGTERM, 1, False)
        os.kill(os.getpid(), signal.SIGINT)
        assert calls.get(timeout=PATIENCE) == (signal.SIGINT, 2, False)
        assert signals.first == signal.SIGTERM


@pytest.mark.parametrize(
    ("times", "counts"),
    [
        pytest.param([5.0, 5.0], [1, None], id="at-once"),
        pytest.param([5.0, 5.9, 6.1], [1, None, 2], id="an-echo-has-no-echo"),
        pytest.param([5.0, 6.0, 6.5, 7.0, 9.0], [1, 2, None, 3, 4], id="impatience"),
    ],
)
def test_echoes(times: list[float], counts: list[int | None]) -> None:
    """What comes within a second after a request is that request once more, whoever sent it."""
    clock = iter(times)
    requests = StopRequests(lambda: next(clock))
    assert [requests.next() for _ in times] == counts


def test_blocked_main_thread() -> None:
    """The reaction does not need the main thread, which may be waiting for it without ever looking
    up.
    """
    heard = threading.Event()
    with StopSignals(lambda number, count: heard.set()):
        signal.pthread_sigmask(
            signal.SIG_BLOCK, [signal.SIGTERM]
        )  # so that another thread is interrupted
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            assert heard.wait(PATIENCE)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


def test_other_signals() -> None:
    """A signal that the application handles itself is no reason to stop."""
    calls: queue.SimpleQueue[int] = queue.SimpleQueue()
    former = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    try:
        with StopSignals(lambda number, count: calls.put(number)) as signals:
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGTERM)
            assert calls.get(timeout=PATIENCE) == signal.SIGTERM
            assert (signals.first, calls.empty()) == (signal.SIGTERM, True)
    finally:
        signal.signal(signal.SIGUSR1, former)


def test_former_handlers_return() -> None:
    """After it, signals do what they did before."""
    former = [signal.getsignal(number) for number in NUMBERS]
    with StopSignals(lambda number, count: None):
        assert signal.getsignal(signal.SIGTERM) not in former
    assert [signal.getsignal(number) for number in NUMBERS] == former


def test_final() -> None:
    """Where the process ends next, a signal that comes too late changes nothing any more."""
    with StopSignals(lambda number, count: None, final=True):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    assert {signal.getsignal(number) for number in NUMBERS} == {signal.SIG_IGN}


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number.name)
def test_switched_off(number: int) -> None:
    """What was switched off by whoever started us stays off: nohup keeps its promise."""
    signal.signal(number, signal.SIG_IGN)
    with StopSignals(lambda number, count: None):
        assert signal.getsignal(number) is signal.SIG_IGN
