"""A process that uses an embedded server until it is told to leave.

Called with the home (and a uid to become first); writes the DSN when the server is up and leaves
when its standard input ends. Run by the tests of sharing and of accounts.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from slotwise.embedded import EmbeddedPostgres, find_binaries


def main(home: str, uid: str | None = None) -> None:
    """Join, say so, wait, leave."""
    if uid is not None:
        os.setgroups([])
        os.setgid(int(uid))
        os.setuid(int(uid))
    binaries = find_binaries()
    with EmbeddedPostgres(Path(home), binaries=binaries, durable=False) as server:
        print(server.dsn, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
