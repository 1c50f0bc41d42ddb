"""A Galera cluster of MariaDB on this machine: three nodes, each with its own data and ports."""

from __future__ import annotations

import os
import random
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from tests.databases import _fast_directory
from tests.kit.patience import PATIENCE
from tests.mariadb import (
    MariaDBDatabases,
    MariaDBServer,
    _program,
    driver_error,
)

PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")
NODES = 3
_PORTS = 20_000, 32_000
_OPTIONS = (
    "evs.inactive_check_period=PT0.2S;evs.keepalive_period=PT0.2S;gcache.size=16M"
)
#: As a node leaves it behind that was killed: all three find each other as they were, and with the
#: same data none copies that of another.
_VIEW = """my_uuid: {mine}
#vwbeg
view_id: 3 {first} {size}
bootstrap: 0
{members}
#vwend
"""


class GaleraNode(MariaDBServer):
    """One node. Until it is told others, it begins a cluster by itself."""

    def __init__(self, home: Path, number: int) -> None:
        super().__init__(home)
        self.name = f"node{number}"
        self.id = f"{number:08}-1605-11e4-aa3d-ab44303c044a"
        self.port, group, transfer, state = (_port() for _ in range(4))
        self.group = f"127.0.0.1:{group}"
        own = (
            f"gmcast.listen_addr=tcp://{self.group};base_host=127.0.0.1;base_port={group};"
            f"ist.recv_addr=127.0.0.1:{transfer}"
        )
        self._own_options = [
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
            "--wsrep-on=ON",
            f"--wsrep-provider={PROVIDER}",
            f"--wsrep-node-name={self.name}",
            "--wsrep-node-address=127.0.0.1",
            "--wsrep-sst-method=rsync",
            f"--wsrep-sst-receive-address=127.0.0.1:{state}",
            f"--wsrep-provider-options={own};{_OPTIONS}",
        ]
        self.join([])

    def join(self, nodes: Sequence[GaleraNode]) -> None:
        """The next start joins these nodes."""
        address = ",".join(node.group for node in nodes)
        self._options = [
            *self._own_options,
            f"--wsrep-cluster-address=gcomm://{address}",
        ]

    def join_again(self, nodes: Sequence[GaleraNode], data: Path) -> None:
        """As if all nodes had been killed with this data."""
        if not self.home.exists():
            self.home.mkdir()
            shutil.copytree(data, self.home / "data")
        members = "\n".join(f"member: {node.id} 0" for node in nodes)
        view = _VIEW.format(
            mine=self.id, first=nodes[0].id, size=len(nodes), members=members
        )
        (self.home / "data" / "gvwstate.dat").write_text(view)
        for path in (self.home, *self.home.glob("**/*")):
            self.give(path)
        self.join(nodes)
        self.launch()

    def status(self, name: str) -> str:
        """Return a value of SHOW STATUS; empty while the node does not answer."""
        with (
            suppress(driver_error()),
            self.connect() as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(f"SHOW STATUS LIKE 'wsrep_{name}'")
            ((_, value),) = cursor.fetchall()
            return str(value)
        return ""

    def execute(self, statement: str) -> None:
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)

    def isolate(self, is_apart: bool) -> None:
        """Cut the node off from the others, or let it back: clients still reach it."""
        option = f"gmcast.isolate={int(is_apart)}"
        self.execute(f"SET GLOBAL wsrep_provider_options = '{option}'")
        wait_for(lambda: (self.status("cluster_status") != "Primary") == is_apart)
        if not is_apart:
            self.wait_synced()

    def reject(self, is_rejecting: bool) -> None:
        """Refuse the statements of clients, as a node without a quorum does."""
        which = "ALL" if is_rejecting else "NONE"
        self.execute(f"SET GLOBAL wsrep_reject_queries = {which}")

    def wait_synced(self) -> None:
        wait_for(lambda: self.status("local_state_comment") == "Synced")

    def shut_down(self) -> None:
        """End it in order, and keep its data."""
        self.execute("SHUTDOWN")
        wait_for(lambda: not (self.home / "pid").exists())
        self.kill()


class GaleraCluster:
    """Three nodes with the same data, on which nothing was written."""

    def __init__(self, home: Path) -> None:
        self.nodes = [
            GaleraNode(home / str(number), number) for number in range(1, NODES + 1)
        ]

    def __enter__(self) -> GaleraCluster:
        first = self.nodes[0]
        data = first.home / "data"
        try:
            first.__enter__()
            first.wait_synced()
            first.shut_down()
            (data / "galera.cache").unlink()
            for node in reversed(self.nodes):
                node.join_again(self.nodes, data)
            for node in self.nodes:
                node.wait()
                node.wait_synced()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.__exit__()


def _port() -> int:
    """A port that no client gets by chance until the node binds it, seconds later: below those
    that systems give to clients.
    """
    while True:
        port = random.randrange(*_PORTS)
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until this is so."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture(scope="session")
def galera() -> Iterator[GaleraCluster]:
    """The cluster of this test process. A test leaves it with all nodes in it."""
    _program("mariadbd")
    if not PROVIDER.exists():
        missing = "galera-4 is missing: apt-get install galera-4"
        (pytest.fail if os.environ.get("ALL_TESTS_MUST_RUN") else pytest.skip)(missing)
    home = Path(tempfile.mkdtemp(dir=_fast_directory(), prefix="slotwise-galera-"))
    home.chmod(0o755)
    with GaleraCluster(home) as cluster:
        yield cluster
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def galera_databases(galera: GaleraCluster) -> MariaDBDatabases:
    return MariaDBDatabases(galera.nodes[0])


@pytest.fixture
def galera_urls(
    galera: GaleraCluster, galera_databases: MariaDBDatabases
) -> Iterator[list[str]]:
    """A database with the tables of slotwise, as each node has it."""
    with galera_databases.provisioned() as url:
        name = url.rpartition("/")[2]
        yield [node.url(name) for node in galera.nodes]
