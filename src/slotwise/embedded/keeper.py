"""The keeper: a process that stops the server once its last user is gone, also when that user was killed.

It leaves the session of the process that started it, sleeps in flock until no process shares `use.lock`, stops the
server and ends. It only waits, and so takes a few megabytes: it is started by path and replaces slotwise's packages by
empty ones, since their import would load SQLAlchemy and the engine. What it imports needs the standard library only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType


def keep(home: Path, pg_ctl: str, uid: str, gid: str, lifetime: str) -> None:
    """Become the only keeper of this home, or end at once.

    `uid` and `gid` are those of the server's account, or `-` for our own; a `temporary` home goes with its server.
    """
    from slotwise.embedded.directories import FileLock, remove_directory

    keeper = FileLock(home / "keeper.lock")
    if not keeper.try_exclude():
        return
    use = FileLock(home / "use.lock")
    if os.fork():  # the locks go with the child; the process that started us need neither wait for it nor reap it
        os._exit(0)
    os.setsid()
    use.exclude()
    if use.is_current():
        _stop(home, pg_ctl, [] if uid == "-" else [int(uid), int(gid)])
        if lifetime == "temporary":
            remove_directory(home)
    keeper.close()  # before `use`: the next user must see that it needs a new keeper


def _stop(home: Path, pg_ctl: str, switch: list[int]) -> None:
    """Stop the server if it is one: pg_ctl would signal any process that has the pid of a dead server."""
    from slotwise.embedded.postmaster import Postmaster

    if Postmaster(home / "data").is_alive():
        subprocess.run(
            [pg_ctl, "-D", home / "data", "-w", "-m", "fast", "stop"],
            user=switch[0] if switch else None,
            group=switch[1] if switch else None,
            extra_groups=[] if switch else None,
            cwd="/",
            check=False,
        )


def main() -> None:
    """Call `keep` with the program's arguments."""
    here = Path(__file__).parent
    for name, folder in (("slotwise", here.parent), ("slotwise.embedded", here)):
        package = sys.modules[name] = ModuleType(name)
        package.__path__ = [str(folder)]
    keep(Path(sys.argv[1]), *sys.argv[2:])


if __name__ == "__main__":
    main()
