"""A file that is written again and again while a worker is alive."""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

from slotwise import ConfigurationError
from slotwise.contrib.metrics.health import ProbeResult

logger = logging.getLogger("slotwise.health")

#: How often the file is written.
INTERVAL: Final = timedelta(seconds=2)


class AliveFile:
    """Writes a file again every two seconds while the process is alive; it is removed at the end.

    A probe compares the age of the file with its own limit. The content is one JSON object, for
    people.
    """

    def __init__(self, path: Path, check: Callable[[], ProbeResult]) -> None:
        """Raise ConfigurationError if the file cannot be written."""
        self._path = path
        self._check = check
        self._stopping = threading.Event()
        self._told: tuple[str, ...] = ()
        try:
            self._write(
                ProbeResult(
                    is_alive=True, is_ready=False, problems=("the worker is starting",)
                )
            )
        except OSError as error:
            raise ConfigurationError(
                f"SLOTWISE_ALIVE_FILE: {path}: {error.strerror}; "
                "name a file in a folder that exists"
            ) from None
        self._thread = threading.Thread(
            target=self._run, name="slotwise-alive-file", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop writing and remove the file."""
        self._stopping.set()
        self._thread.join()
        with suppress(OSError):
            self._path.unlink()

    def _run(self) -> None:
        while not self._stopping.wait(INTERVAL.total_seconds()):
            verdict = self._check()
            if not verdict.is_alive and verdict.problems != self._told:
                self._told = verdict.problems
                logger.error(
                    "not alive, so %s is not written: %s",
                    self._path,
                    "; ".join(verdict.problems),
                )
            if verdict.is_alive:
                with suppress(OSError):  # the disk is full: the next round tries again
                    self._write(verdict)

    def _write(self, verdict: ProbeResult) -> None:
        """Race: a probe may read at any time, so the file is replaced as a whole. In a directory
        of many accounts the draft's name cannot be foreseen, and an existing file or link is
        never opened.
        """
        draft = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
        told = json.dumps({"ready": verdict.is_ready, "problems": verdict.problems})
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        try:
            with os.fdopen(
                os.open(draft, flags, 0o644), "w", encoding="utf-8"
            ) as file:
                file.write(told + "\n")
            draft.replace(self._path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
