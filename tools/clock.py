#!/usr/bin/env python3
"""Run a command at another time: ``tools/clock.py "2028-02-29 23:58" COMMAND ARGUMENT ...``

The command, its children and the servers that they start see a wall clock that begins at this
time and runs on; TZ says where. Spans and timeouts stay true. Needs Linux and a C compiler.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


def variables(time: str) -> dict[str, str]:
    """What a process needs in its environment to begin at this local time. ``23:58`` is today.

    ValueError if it is no time; RuntimeError if this system cannot shift a clock.
    """
    now = datetime.now().astimezone()
    text = time if "-" in time else f"{now.date()} {time}"
    offset = datetime.fromisoformat(text).astimezone() - now
    return {
        "LD_PRELOAD": str(library()),
        "TESTS_CLOCK_OFFSET": str(round(offset.total_seconds())),
    }


def library() -> Path:
    """The compiled ``clock.c``, where every account can read it."""
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        raise RuntimeError(
            "another clock needs Linux and a C compiler (Debian: apt-get install gcc)"
        )
    version = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    path = Path(tempfile.gettempdir(), f"clock-{os.getuid()}-{version}.so")
    if not path.exists():
        draft = path.with_suffix(f".{os.getpid()}")
        options = [
            "-O2",
            "-Wall",
            "-Werror",
            "-shared",
            "-fPIC",
            "-o",
            str(draft),
            str(SOURCE),
        ]
        subprocess.run([compiler, *options, "-ldl"], check=True)
        draft.chmod(0o755)
        draft.rename(path)
    return path


def main(arguments: list[str]) -> int:
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    time, *command = arguments
    try:
        return subprocess.run(
            command, env={**os.environ, **variables(time)}
        ).returncode
    except (ValueError, RuntimeError) as error:
        print(f"clock: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
