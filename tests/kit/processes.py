"""``python -m slotwise …`` as a process of its own, without the half second of imports: where that
is safe, it is forked from a process that has them (``tests/kit/fork_server.py``). Tests of the
start of an interpreter, or of its imports, use ``subprocess``.

Only on Linux: on macOS, libraries of the system may not survive a fork.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import pytest
from tests.kit.patience import PATIENCE

SERVER = Path(__file__).with_name("fork_server.py")
#: Variables that the interpreter or a library reads when it starts.
EARLY = (
    "PYTHON",
    "LC_",
    "LANG",
    "LD_",
    "MALLOC_",
    "PSYCOPG_",
    "SQLALCHEMY_",
    "OPENSSL_",
    "TESTS_",
)


class Forked:
    """A process of the fork server, with what tests use of ``subprocess.Popen``."""

    def __init__(
        self, pid: int, ending: socket.socket, out: IO[Any], err: IO[Any] | None
    ) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout = out
        self.stderr = err
        self._ending = ending
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None and select.select([self._ending], [], [], 0)[0]:
                with self._ending:
                    self.returncode = int(self._ending.recv(16))
            return self.returncode

    def wait(self, timeout: float = PATIENCE) -> int:
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("slotwise", timeout)
            time.sleep(0.005)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The process that forks. Who is not served by it starts an interpreter."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        self._early = _early(_environment)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(SERVER), str(theirs.fileno())],
                cwd=SERVER.parent,
                # ``startup/sitecustomize.py`` looks for the name of a test.
                env={**_environment, "PYTEST_CURRENT_TEST": "forked processes"},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Whether an interpreter begins there as this one began here."""
        return self._process.poll() is None and _early(environment) == self._early

    def fork(
        self, request: Mapping[str, object], out: int, err: int
    ) -> tuple[int, socket.socket]:
        """Return the number of the process, and a socket that will tell its exit status."""
        ours, theirs = socket.socketpair()
        with theirs, Path(os.devnull).open("rb") as nothing:
            handed = [theirs.fileno(), nothing.fileno(), out, err]
            socket.send_fds(self._control, [b"."], handed)
        ours.sendall(json.dumps(request).encode() + b"\n")
        number = b""
        while not number.endswith(b"\n"):
            if not (byte := ours.recv(1)):
                ours.close()
                raise RuntimeError("the fork server has ended")
            number += byte
        return int(number), ours

    def close(self) -> None:
        self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        self._process.communicate()


#: That of pytest itself, whatever the first test has changed that starts a process.
_environment: dict[str, str] = {}
#: At most one of each process of pytest.
_servers: list[ForkServer] = []
_one_at_a_time = threading.Lock()


def start(
    *words: str,
    directory: Path,
    environment: Mapping[str, str],
    stderr: int = subprocess.PIPE,
    text: bool = True,
    new_session: bool = False,
) -> Forked | subprocess.Popen[Any]:
    """Start ``python WORDS …``; its output, and by default its errors, come through pipes."""
    with _one_at_a_time:
        if sys.platform == "linux" and not _servers:
            _servers.append(ForkServer())
        if _servers and _servers[0].serves(environment):
            request = {
                "words": words,
                "directory": str(directory),
                "environment": dict(environment),
                "new_session": new_session,
            }
            return _forked(request, stderr, text)
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=text,
        start_new_session=new_session,
    )


def run(
    *words: str, directory: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run ``python WORDS …`` to its end."""
    process = start(*words, directory=directory, environment=environment)
    out, err = read_to_the_end(process)
    return subprocess.CompletedProcess(words, process.wait(), out, err)


def read_to_the_end(process: Forked | subprocess.Popen[str]) -> tuple[str, str]:
    """Return what is left of both pipes; a process that takes too long is killed."""
    texts = {"out": "", "err": ""}
    assert process.stdout is not None
    assert process.stderr is not None
    readers = [
        threading.Thread(target=_read, args=(pipe, name, texts), daemon=True)
        for name, pipe in (("out", process.stdout), ("err", process.stderr))
    ]
    for reader in readers:
        reader.start()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(PATIENCE)
        raise
    finally:
        for reader in readers:
            reader.join(PATIENCE)
    return texts["out"], texts["err"]


@pytest.hookimpl(trylast=True)  # after those that add variables
def pytest_configure() -> None:
    _environment.clear()
    _environment.update(os.environ)


def pytest_unconfigure() -> None:
    while _servers:
        _servers.pop().close()


def _forked(request: Mapping[str, object], stderr: int, text: bool) -> Forked:
    out, out_end = os.pipe()
    err, err_end = os.pipe() if stderr == subprocess.PIPE else (-1, os.dup(out_end))
    try:
        pid, ending = _servers[0].fork(request, out_end, err_end)
    finally:
        os.close(out_end)
        os.close(err_end)
    mode = "r" if text else "rb"
    errors = os.fdopen(err, mode) if err >= 0 else None
    return Forked(pid, ending, os.fdopen(out, mode), errors)


def _read(pipe: IO[str], name: str, texts: dict[str, str]) -> None:
    if not pipe.closed:
        with pipe:
            texts[name] = pipe.read()


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if name.startswith(EARLY)
    }
