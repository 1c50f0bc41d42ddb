"""Clocks that step, for one process and its children. Needs libfaketime (apt-get install
faketime).
"""

from __future__ import annotations

import os
import select
from datetime import timedelta
from pathlib import Path

LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))


def is_faked() -> bool:
    """Whether this process sees the clock of a SteppedClock."""
    return "FAKETIME_TIMESTAMP_FILE" in os.environ


def sleep(seconds: float) -> None:
    """Instead of ``time.sleep``, which raises OSError in such a process: libfaketime 0.9 breaks
    clock_nanosleep.
    """
    select.select([], [], [], seconds)


class SteppedClock:
    """A clock beside the true one; spans, and thereby timeouts, stay true. Python sleeps there
    with ``sleep``.
    """

    def __init__(self, file: Path, offset: timedelta = timedelta(0)) -> None:
        self._file = file
        self.step(offset)

    def step(self, offset: timedelta) -> None:
        """To so much beside the true time, at once."""
        draft = self._file.with_suffix(".new")
        draft.write_text(f"{offset.total_seconds():+.0f}")
        draft.chmod(0o644)
        draft.rename(self._file)

    @property
    def variables(self) -> dict[str, str]:
        """What a process needs in its environment to see this clock."""
        return {
            "LD_PRELOAD": str(LIBRARIES[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
