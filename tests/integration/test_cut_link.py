"""A link that is cut without a word: the worker's statement fails in seconds, not in a quarter of
an hour.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from sqlalchemy import make_url

IP = shutil.which("ip", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        IP is None or not sys.platform.startswith("linux") or os.getuid() != 0,
        reason="cutting a link takes root on Linux and iproute2",
    ),
]

HERE, THERE = "10.213.77.1", "10.213.77.2"

WORKER = """
import sys, time
from slotwise.settings.settings import Settings
from slotwise.store.connect.database import Database
from slotwise.store.connect.database_errors import is_transient

address, statement, when = sys.argv[1:]
settings = Settings.load(environ={}, database_url=address, heartbeat_interval="1s", missed_heartbeats_limit=60)
database = Database(settings)
with database.main.connect() as connection:
    connection.exec_driver_sql("SELECT 1")
    print("ready", flush=True)
    if when == "before":
        sys.stdin.readline()
    began = time.monotonic()
    try:
        connection.exec_driver_sql(statement)
    except Exception as error:
        print(is_transient(error), round(time.monotonic() - began, 1), flush=True)
        connection.invalidate()
"""


def ip(*words: str) -> None:
    subprocess.run([str(IP), *words], check=True, capture_output=True, timeout=10)


@pytest.fixture
def link() -> Iterator[str]:
    """A network namespace with one link to this one; gives its name, which is the name of our end
    too.
    """
    name = f"sw{os.getpid()}"
    ip("netns", "add", name)
    try:
        ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("addr", "add", f"{HERE}/30", "dev", name)
        ip("link", "set", name, "up")
        ip("-n", name, "addr", "add", f"{THERE}/30", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        yield name
        ip(
            "link", "del", name
        )  # the namespace goes only when its last process has gone, and the link with it
    finally:
        ip("netns", "del", name)


@pytest.fixture
def forwarded(link: str, pg_empty_url: str) -> Iterator[str]:
    """The server's address on our end of the link."""
    url = make_url(pg_empty_url)
    with socket.create_server((HERE, 0)) as listener:
        threading.Thread(
            target=accept, args=(listener, (url.host, url.port)), daemon=True
        ).start()
        yield url.set(host=HERE, port=listener.getsockname()[1]).render_as_string(
            hide_password=False
        )


def accept(listener: socket.socket, server: tuple[str, int]) -> None:
    with suppress(OSError):  # the listener was closed
        while True:
            near, far = listener.accept()[0], socket.create_connection(server)
            for source, target in ((near, far), (far, near)):
                threading.Thread(
                    target=copy, args=(source, target), daemon=True
                ).start()


def copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError), source, target:
        while data := source.recv(65536):
            target.sendall(data)


@pytest.mark.parametrize(
    ("statement", "when"),
    [("SELECT 1", "before"), ("SELECT pg_sleep(300)", "during")],
    ids=["sending", "waiting"],
)
def test_cut(link: str, forwarded: str, statement: str, when: str) -> None:
    """Whether something was just sent (tcp_user_timeout) or an answer is waited for
    (keepalives).
    """
    command = [
        str(IP),
        "netns",
        "exec",
        link,
        sys.executable,
        "-c",
        WORKER,
        forwarded,
        statement,
        when,
    ]
    worker = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert worker.stdout
        assert worker.stdout.readline() == "ready\n"
        ip("link", "set", link, "down")
        transient, seconds = worker.communicate("cut\n", timeout=60)[0].split()
    finally:
        worker.kill()
        worker.communicate()
    assert transient == "True"
    assert 0.5 < float(seconds) < 10
