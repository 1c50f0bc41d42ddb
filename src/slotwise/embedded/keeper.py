"""Stops the server once its last user is gone: also when that user was killed and could not do it itself.

Started as a script by path, so it needs nothing but the standard library and a few megabytes. It leaves the
session of whoever started it, sleeps in flock until nobody shares `use.lock`, stops the server and ends.
Its parameters: the home, pg_ctl, uid and gid for it (or - and -), `temporary` if the home is to go.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path


def main(home: Path, pg_ctl: str, uid: str, gid: str, lifetime: str) -> None:
    """Become the only keeper of this home, or end at once."""
    keeper = os.open(home / "keeper.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(keeper, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    use = os.open(home / "use.lock", os.O_RDWR)
    if os.fork():  # the lock goes with the child; whoever started us need not wait for it, nor reap it
        os._exit(0)
    os.setsid()
    fcntl.flock(use, fcntl.LOCK_EX)
    if _is_current(use, home / "use.lock"):
        _stop(home, pg_ctl, uid, gid)
        if lifetime == "temporary":
            remove(home)
    fcntl.flock(keeper, fcntl.LOCK_UN)  # before `use`: who comes next must see that it needs a new keeper


def remove(home: Path) -> None:
    """Remove a home that nobody uses; first by name, so that nobody builds a new one inside the ruins."""
    ruins = home.with_name(f"{home.name}.gone-{os.getpid()}")
    home.rename(ruins)
    shutil.rmtree(ruins, ignore_errors=True)


def _is_current(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _stop(home: Path, pg_ctl: str, uid: str, gid: str) -> None:
    switch = {} if uid == "-" else {"user": int(uid), "group": int(gid), "extra_groups": []}
    subprocess.run(  # type: ignore[call-overload]
        [pg_ctl, "-D", home / "data", "-w", "-m", "fast", "stop"], cwd="/", check=False, **switch
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
