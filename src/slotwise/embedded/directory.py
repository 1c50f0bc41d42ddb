"""Directories that are ours: made for the server's account, removed with their last user."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def make_directory(path: Path) -> None:
    """Make it and what is missing above it. Only what we make gets rights from us, whatever the umask says:
    everybody else stays out, except that root lets the server's account pass through."""
    missing = [place for place in (path, *path.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(exist_ok=True)
        place.chmod(0o755 if os.geteuid() == 0 else 0o700)


def remove_directory(path: Path) -> None:
    """Remove one that nobody uses; first by name, so that nobody builds a new one inside the ruins."""
    ruins = path.with_name(f"{path.name}.gone-{os.getpid()}")
    path.rename(ruins)
    shutil.rmtree(ruins, ignore_errors=True)
