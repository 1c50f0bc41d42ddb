"""Words to other workers: few of them, none lost, and never a reason to fail."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta

import psycopg
from tests.kit.connections import WakeUps
from tests.kit.patience import PATIENCE

LONG = timedelta(hours=1)


class Ear:
    """What was sent, in the order of sending."""

    def __init__(self, pause: timedelta) -> None:
        self.sent: list[list[str]] = []
        self.heard = threading.Semaphore(0)
        self.wake_ups = WakeUps(self.send, pause)

    def send(self, words: Sequence[str]) -> None:
        self.sent.append(list(words))
        self.heard.release()


def test_the_first_word_is_sent_at_once_and_the_others_together() -> None:
    """A word that comes too soon waits for the end of the pause, with all that come meanwhile."""
    ear = Ear(LONG)
    ear.wake_ups.tell("mail")
    assert ear.sent == [["mail"]]
    for word in ("mail", "report", "mail"):
        ear.wake_ups.tell(word)
    assert ear.sent == [["mail"]]
    ear.wake_ups.flush()
    assert ear.sent == [["mail"], ["mail", "report"]]
    ear.wake_ups.flush()
    assert len(ear.sent) == 2


def test_the_pause_ends_by_itself() -> None:
    """Nobody has to come again."""
    ear = Ear(timedelta(milliseconds=2))
    ear.wake_ups.tell("mail")
    ear.wake_ups.tell("report")
    assert ear.heard.acquire(timeout=PATIENCE)
    assert ear.heard.acquire(timeout=PATIENCE)
    assert ear.sent == [["mail"], ["report"]]


def test_a_turn_is_for_one_word_and_then_the_pause() -> None:
    """Who takes it sends, and others wait; nobody may take it while a word is owed, which would be
    overtaken.
    """
    ear = Ear(LONG)
    assert ear.wake_ups.takes_turn()
    assert not ear.wake_ups.takes_turn()
    ear.wake_ups.tell("mail")
    assert ear.sent == []
    ear.wake_ups.flush()
    assert ear.sent == [["mail"]]

    ear = Ear(timedelta(0))
    ear.wake_ups.tell("mail", within=LONG)
    assert not ear.wake_ups.takes_turn()
    ear.wake_ups.flush()
    assert ear.wake_ups.takes_turn()


def test_of_many_threads_no_word_is_lost() -> None:
    """Race: a word may come while another thread sends what was owed before."""
    ear = Ear(timedelta(microseconds=50))
    threads = [
        threading.Thread(
            target=lambda n=n: [ear.wake_ups.tell(f"{n}-{i}") for i in range(50)]
        )
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    ear.wake_ups.flush()
    assert {word for words in ear.sent for word in words} == {
        f"{n}-{i}" for n in range(8) for i in range(50)
    }


def test_nothing_is_sent_after_a_flush_has_returned() -> None:
    """Race: a timer has begun to flush as the database closes; it must not open a connection after
    the close.
    """
    ear = Ear(LONG)
    timer = threading.Thread(target=ear.wake_ups.flush)
    has_begun, may_go_on = threading.Event(), threading.Event()

    class HeldUp:
        """The lock of senders, before which the timer is held up."""

        lock = threading.Lock()

        def __enter__(self) -> None:
            if threading.current_thread() is timer:
                has_begun.set()
                assert may_go_on.wait(PATIENCE)
            self.lock.acquire()

        def __exit__(self, *_: object) -> None:
            self.lock.release()

    ear.wake_ups.tell("first")
    ear.wake_ups.tell("second")
    ear.wake_ups._sending = HeldUp()  # type: ignore[assignment]
    timer.start()
    assert has_begun.wait(PATIENCE)
    ear.wake_ups.flush()
    sent_at_the_close = [*ear.sent]
    may_go_on.set()
    timer.join(PATIENCE)
    assert ear.sent == sent_at_the_close == [["first"], ["second"]]


def test_a_word_that_cannot_be_sent_is_nobodys_error() -> None:
    """The task is scheduled: polls find it."""

    def refuse(words: Sequence[str]) -> None:
        raise ConnectionError

    WakeUps(refuse).tell("mail")


SCRIPT = """
import sys
from slotwise import JobRegistry, task
client = JobRegistry(tasks=[task(name="first")(print)], database_url=sys.argv[1], process_hook=False).client
client.schedule("first")
client.schedule("second")
"""


def test_a_script_that_ends_at_once_has_said_all(pg_url: str) -> None:
    """The last word waits for the end of its pause, and the interpreter for the last word."""
    with psycopg.connect(pg_url, autocommit=True) as ear:
        ear.execute("LISTEN scheduled_wake")
        subprocess.run(
            [sys.executable, "-c", SCRIPT, pg_url], check=True, timeout=PATIENCE
        )
        said = [
            notify.payload for notify in ear.notifies(timeout=PATIENCE, stop_after=2)
        ]
    assert said == ["first", "second"]
