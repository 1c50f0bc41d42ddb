"""A real PostgreSQL for the quick start, the demo and the tests, without installing or configuring
one.

`shared_server("demo")` finds PostgreSQL's programs, makes a data directory, starts the server and
returns its DSN. Several processes may do so at once and share the server; it stops when the last
of them has ended, even by SIGKILL. It listens on 127.0.0.1 only and requires a random password,
which the DSN contains. Not for production: there are no backups, and data do not move to the next
major version of PostgreSQL (each has a directory of its own). Imports ``errors`` alone.
"""

from __future__ import annotations

from slotwise.embedded.binaries import Binaries, find_binaries
from slotwise.embedded.server import EmbeddedPostgres, GivenPostgres, shared_server

__all__ = [
    "Binaries",
    "EmbeddedPostgres",
    "GivenPostgres",
    "find_binaries",
    "shared_server",
]
