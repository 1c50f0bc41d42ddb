"""Where the data of embedded servers are kept."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from slotwise.embedded.directory import make_directory
from slotwise.errors import DatabaseUnreachable


def state_directory() -> Path:
    """/var/lib/slotwise for root, else below XDG_STATE_HOME or ~/.local/state; in need below /tmp."""
    places = list(_places())
    for place in places:
        try:
            make_directory(place)
        except OSError:
            continue
        if os.access(place, os.W_OK) and place.stat().st_uid == os.geteuid():
            return place
    tried = ", ".join(str(place) for place in places)
    raise DatabaseUnreachable(f"no directory for PostgreSQL's data, tried {tried}; set XDG_STATE_HOME")


def _places() -> Iterator[Path]:
    if os.geteuid() == 0:
        yield Path("/var/lib/slotwise")
    else:
        yield Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser(), "slotwise")
    yield Path(tempfile.gettempdir(), f"slotwise-{os.geteuid()}")
