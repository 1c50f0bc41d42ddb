"""A real PostgreSQL for the quick start, the demo and the tests, without installing or configuring one.

`shared_server("demo")` finds PostgreSQL's programs, makes a data directory, starts the server and gives its
DSN. Several processes may do so at once and share the server; it stops when the last of them is gone, however
they went. It listens on 127.0.0.1 only and asks for a random password, which the DSN carries. Not for
production: nobody backs it up, and nobody moves its data to the next major version of PostgreSQL (each has a
directory of its own).
"""

from __future__ import annotations

from slotwise.embedded.binaries import Binaries, find_binaries
from slotwise.embedded.given import GivenPostgres
from slotwise.embedded.server import EmbeddedPostgres, shared_server

__all__ = ["Binaries", "EmbeddedPostgres", "GivenPostgres", "find_binaries", "shared_server"]
