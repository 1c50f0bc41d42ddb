"""Tells systemd that a worker is up, alive, or stopping: the protocol of ``sd_notify``."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from slotwise.contrib.metrics.health import ProbeResult

logger = logging.getLogger("slotwise.health")

#: How often systemd hears of the worker, unless its watchdog wants it more often.
INTERVAL: Final = timedelta(seconds=5)
#: How much longer systemd waits for a start that is under way: its database may be away.
PATIENCE: Final = timedelta(minutes=1)


class ServiceManager:
    """Sends the state of a worker while its process is alive, for ``Type=notify``.

    ``READY=1`` follows when all loops run and the database answers. Until then systemd is asked to
    wait longer, as long as the process is alive. The watchdog hears of a process that is alive, so
    systemd restarts one whose loop hangs.
    """

    def __init__(self, address: str, check: Callable[[], ProbeResult]) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._check = check
        self._stopping = threading.Event()
        self._was_ready = False
        self._status = ""
        self._thread = threading.Thread(
            target=self._run, name="slotwise-service-manager", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Tell systemd that the process ends."""
        self._stopping.set()
        self._thread.join()
        self._send("STOPPING=1")

    def _run(self) -> None:
        interval = _interval(os.environ.get("WATCHDOG_USEC"))
        while True:
            self._tell(self._check())
            if self._stopping.wait(interval.total_seconds()):
                return

    def _tell(self, found: ProbeResult) -> None:
        lines = []
        if found.is_ready and not self._was_ready:
            self._was_ready = True
            lines.append("READY=1")
        elif found.is_alive and not self._was_ready:
            lines.append(
                f"EXTEND_TIMEOUT_USEC={PATIENCE // timedelta(microseconds=1)}"
            )
        if found.is_alive:
            lines.append("WATCHDOG=1")
        status = " ".join("; ".join(found.problems).split()) or "ready"
        if status != self._status:
            self._status = status
            lines.append(f"STATUS={status}")
        if lines:
            self._send("\n".join(lines))

    def _send(self, text: str) -> None:
        """One datagram. A manager that does not listen costs a line of the log and no more."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(1)
                sender.sendto(text.encode(), self._address)
        except OSError as error:
            logger.debug("systemd was not told: %s", error.strerror or error)


def _interval(watchdog: str | None) -> timedelta:
    """Half the time after which the watchdog acts, at most ``INTERVAL``."""
    if watchdog is None or not watchdog.isdecimal() or not int(watchdog):
        return INTERVAL
    return min(timedelta(microseconds=int(watchdog)) / 2, INTERVAL)
