"""The account the server runs under: PostgreSQL refuses to run as root."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slotwise.errors import PostgresMissing

SERVER_ACCOUNTS = ("postgres", "nobody")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The account that runs PostgreSQL's programs: our own, or another one when we are root (`switched`)."""

    name: str
    uid: int
    gid: int
    switched: bool

    def run(self, command: Sequence[str | Path], *, silent: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a program to its end; `silent` if it leaves a daemon, which would keep our pipes open."""
        output = subprocess.DEVNULL if silent else subprocess.PIPE
        return subprocess.run(
            [str(word) for word in command],
            user=self.uid if self.switched else None,
            group=self.gid if self.switched else None,
            extra_groups=[] if self.switched else None,
            cwd="/",  # the account may not be allowed to enter our working directory
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
            check=False,
            start_new_session=True,  # Ctrl-C in the terminal must not reach the server
        )

    def own(self, path: Path, mode: int) -> None:
        """Give a file or directory that we made to the account."""
        path.chmod(mode)
        if self.switched:
            os.chown(path, self.uid, self.gid)


def server_account(names: Sequence[str] = SERVER_ACCOUNTS) -> Account:
    """Return our own account; as root `postgres`, else `nobody` (initdb needs an entry in the password file)."""
    if os.geteuid() != 0:
        return Account(name=str(os.geteuid()), uid=os.geteuid(), gid=os.getegid(), switched=False)
    for name in names:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid, switched=True)
    raise PostgresMissing(f"PostgreSQL cannot run as root and there is no user {' or '.join(names)}")


def clean_environment() -> dict[str, str]:
    """Return our environment without PGDATA, PGPORT and other variables that PostgreSQL reads; messages in English."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return kept | {"LC_ALL": "C"}
