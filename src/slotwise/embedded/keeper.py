"""Stops the server once its last user is gone: also when that user was killed and could not do it itself.

A process of its own, see keeper_process.py. It leaves the session of whoever started it, sleeps in flock until
nobody shares `use.lock`, stops the server and ends.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from slotwise.embedded.directory import remove_directory
from slotwise.embedded.lock import FileLock
from slotwise.embedded.postmaster import Postmaster


def keep(home: Path, pg_ctl: str, uid: str, gid: str, lifetime: str) -> None:
    """Become the only keeper of this home, or end at once.

    `uid` and `gid` are those of the server's account, or `-` for our own; a `temporary` home goes with its server.
    """
    keeper = FileLock(home / "keeper.lock")
    if not keeper.try_exclude():
        return
    use = FileLock(home / "use.lock")
    if os.fork():  # the locks go with the child; whoever started us need not wait for it, nor reap it
        os._exit(0)
    os.setsid()
    use.exclude()
    if use.is_current():
        _stop(home, pg_ctl, [] if uid == "-" else [int(uid), int(gid)])
        if lifetime == "temporary":
            remove_directory(home)
    keeper.close()  # before `use`: who comes next must see that it needs a new keeper


def _stop(home: Path, pg_ctl: str, switch: list[int]) -> None:
    """Stop the server if it is one: pg_ctl would signal whoever has the pid of a dead one."""
    if Postmaster(home / "data").is_alive():
        subprocess.run(
            [pg_ctl, "-D", home / "data", "-w", "-m", "fast", "stop"],
            user=switch[0] if switch else None,
            group=switch[1] if switch else None,
            extra_groups=[] if switch else None,
            cwd="/",
            check=False,
        )
