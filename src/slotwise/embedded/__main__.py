"""`python -m slotwise.embedded [NAME]`: run a PostgreSQL for development until Ctrl-C, and print
its address.
"""

from __future__ import annotations

import re
import signal
import sys

from slotwise.embedded.server import shared_server
from slotwise.errors import SlotwiseError

USAGE = (
    "usage: python -m slotwise.embedded [NAME]; NAME has letters, digits and dashes, "
    "and is a directory of data"
)


def main(arguments: list[str]) -> int:
    """Run the server, which other processes may share; data are kept under its name."""
    name = arguments[0] if arguments else "development"
    if len(arguments) > 1 or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]*", name):
        print(USAGE, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with shared_server(name) as server:
            print(f"export DATABASE_URL={server.dsn}", flush=True)
            print(
                "PostgreSQL runs until Ctrl-C; paste the line above into another terminal",
                file=sys.stderr,
            )
            signal.pause()
    except KeyboardInterrupt:
        pass
    except SlotwiseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
