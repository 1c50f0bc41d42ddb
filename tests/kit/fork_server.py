"""A process that has imported slotwise and forks for each command: the tests' processes start in
a tenth of the time.

It has no threads, opens nothing and reads no setting: what it forks finds the state in which
``python -m slotwise`` begins, except that the modules are there already. ``tests/kit/processes.py``
talks to it.
"""

from __future__ import annotations

import gc
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import time
import warnings
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

#: What has to be imported by who uses it: it is not everybody's, or runs when it is imported.
LEFT_OUT = (
    "slotwise.__main__",
    "slotwise.cli.isolated",
    "slotwise.contrib",
    "slotwise.demo",
    "slotwise.embedded.__main__",
    "slotwise.simulate",
    "slotwise.testing",
)
DRIVERS = (
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "psycopg",
    "sqlite3",
)


def preload() -> None:
    import slotwise

    for name in DRIVERS:
        import_module(name)
    for module in pkgutil.walk_packages(slotwise.__path__, "slotwise."):
        if not module.name.startswith(LEFT_OUT):
            import_module(module.name)
    tables = import_module("slotwise.store.schema.tables").tables
    for database in ((), ("postgresql",), ("sqlite",)):
        tables("scheduled_", None, *database)  # kept, as the modules are


class Server:
    """Waits for requests; tells each client which process is its own, and how that ended."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._clients: dict[int, socket.socket] = {}
        self._ended, self._signalled = socket.socketpair()

    def serve(self) -> dict[str, Any]:
        """Return in each process that is forked, with what that is to run."""
        self._signalled.setblocking(False)
        signal.set_wakeup_fd(self._signalled.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        while True:
            ready, _, _ = select.select([self._control, self._ended], [], [])
            if self._ended in ready:
                self._ended.recv(4096)
                self._reap()
            if self._control in ready and (request := self._fork()) is not None:
                return request

    def _fork(self) -> dict[str, Any] | None:
        """The request, in the process that is forked for it; None in this one."""
        word, handed, _, _ = socket.recv_fds(self._control, 1, 4)
        if not word:
            os._exit(0)  # the tests are over
        client = socket.socket(fileno=handed[0])
        with client.makefile("rb") as lines:
            request: dict[str, Any] = json.loads(lines.readline())
        pid = os.fork()
        if pid:
            self._clients[pid] = client
            client.sendall(b"%d\n" % pid)
            for descriptor in handed[1:]:
                os.close(descriptor)
            return None
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        ours = (self._control, self._ended, self._signalled, client)
        for each in (*ours, *self._clients.values()):
            each.close()
        for number, descriptor in enumerate(handed[1:]):
            os.dup2(descriptor, number)
        for descriptor in handed[1:]:
            os.close(descriptor)
        return request

    def _reap(self) -> None:
        while self._clients:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            with self._clients.pop(pid) as client:
                client.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def become(request: dict[str, Any]) -> None:
    """Make this process what an interpreter is before it runs what it was told."""
    if request["new_session"]:
        os.setsid()
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    sys.orig_argv = [sys.executable, *request["words"]]


def run(word: str, *arguments: str) -> None:
    """Do what ``python WORD ARGUMENT …`` does: for ``-m MODULE``, ``-c CODE``, or a file; before
    these may stand ``-W ACTION``.
    """
    if word == "-W":
        action, *rest = arguments
        sys.warnoptions.append(action)
        warnings.simplefilter(action)  # type: ignore[arg-type]
        run(*rest)
        return
    if word == "-m":
        module, *arguments_of_it = arguments
        sys.path.insert(0, str(Path.cwd()))
        sys.argv = [module, *arguments_of_it]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = ModuleType("__main__")
    if word == "-c":
        code, *arguments_of_it = arguments
        sys.path.insert(0, "")
        sys.argv = ["-c", *arguments_of_it]
        exec(compile(code, "<string>", "exec"), main.__dict__)
    else:
        file = Path(word).resolve()
        sys.path.insert(0, str(file.parent))
        sys.argv = [word, *arguments]
        main.__file__ = str(file)
        exec(compile(file.read_bytes(), file, "exec"), main.__dict__)


if __name__ == "__main__":
    del sys.path[0]  # the directory of this file
    preload()
    gc.collect()
    gc.freeze()  # or each process would copy what it only looks at
    served = Server(socket.socket(fileno=int(sys.argv[1]))).serve()
    become(served)
    run(*served["words"])
