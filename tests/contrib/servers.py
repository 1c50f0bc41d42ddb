"""Real servers for tests: a process, its address, what it says, and its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kit.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


class Server:
    """A process that serves HTTP."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process, self.port, self._log = process, port, log

    def get(self, path: str, *, post: bool = False) -> tuple[int, Any]:
        """Return the status and the body, as JSON if it is."""
        call = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", method="POST" if post else "GET"
        )
        try:
            with urllib.request.urlopen(call, timeout=PATIENCE) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text.decode()

    def post(self, path: str) -> tuple[int, Any]:
        return self.get(path, post=True)

    @property
    def log(self) -> str:
        """What the process has said so far."""
        return self._log.read_text()

    def until(self, condition: Callable[[], object]) -> Any:
        """Wait until the condition holds, and return its value; the log says why it does not."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                if found := condition():
                    return found
            except OSError:
                pass
            assert self.process.poll() is None, self.log
            time.sleep(0.05)
        raise AssertionError(f"it did not come:\n{self.log}")

    def stop(self) -> int:
        """Request a stop, and return the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


def environment(url: str, **more: str) -> dict[str, str]:
    """Return this process's environment with the database, and without settings of slotwise."""
    kept = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith("SLOTWISE_")
    }
    return {
        **kept,
        "DATABASE_URL": url,
        "PYTHONUNBUFFERED": "1",
        "SLOTWISE_POLL_INTERVAL": "1s",
        **more,
    }


def program(name: str) -> str:
    """Return the path of a command that is installed beside this Python."""
    return str(Path(sys.executable).with_name(name))


@contextmanager
def serving(
    command: list[str],
    directory: Path,
    log: Path,
    env: Mapping[str, str],
    status: int = 200,
) -> Iterator[Server]:
    """Start a server, with ``{port}`` in its command replaced, and wait until it answers with this
    status.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [part.format(port=port) for part in command],
            cwd=directory,
            env=env,
            stdout=output,
            stderr=output,
        )
    server = Server(process, port, log)
    try:
        server.until(lambda: server.get("/orders")[0] == status)
        yield server
    finally:
        try:
            server.stop()
        finally:
            process.kill()
            process.wait()


def run(command: list[str], directory: Path, env: Mapping[str, str]) -> str:
    """Run a command that ends by itself, successfully; return what it says on stdout."""
    done = subprocess.run(
        command,
        cwd=directory,
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
