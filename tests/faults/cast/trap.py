"""Lets a worker fall, or sleep, at an exact place in its code."""

from __future__ import annotations

import os
import signal
import threading
import time

from tests.faults.cast.witness import tell

from slotwise.spi import Event


class Trap:
    """``claimed:3:KILL`` or ``claimed:3:STOP:job``: at the third such event this process sends
    itself that signal.

    Listeners are called where the thing happens, so its thread is at that very place when all
    threads stop. With ``NAP`` only this thread sleeps there, for a second.
    """

    def __init__(self, text: str) -> None:
        self._event, number, word, *job = text.split(":")
        self._left = int(number)
        self._signal = None if word == "NAP" else signal.Signals[f"SIG{word}"]
        self._job = job[0] if job else None
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        job = getattr(event, "job", None)
        if event.name != self._event or self._job not in (None, job):
            return
        with self._lock:
            self._left -= 1
            springs = self._left == 0
        if springs:
            tell(
                "trap", phase=event.name, job=job, token=getattr(event, "token", None)
            )
            self._spring()

    def _spring(self) -> None:
        if self._signal is None:
            time.sleep(1)
        else:
            os.kill(os.getpid(), self._signal)
            # Race: if another thread takes the signal, this one goes on until the kernel has
            # stopped it.
            time.sleep(0.2)
