"""A real Redis server for tests, and processes that hold locks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import redis
from tests.kit.programs import program

ROOT = Path(__file__).resolve().parents[3]


def eventually(check: Callable[[], bool], what: str, seconds: float = 20) -> None:
    """Wait until the check is true; fail with ``what`` if it never is."""
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.01)


class RedisServer:
    """A context manager. Its socket stays the same over a restart."""

    def __init__(self, folder: Path, *, is_durable: bool = False) -> None:
        self._folder = folder
        self._is_durable = is_durable
        self.url = f"unix://{folder}/redis.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        arguments = [
            "--port",
            "0",
            "--unixsocket",
            str(self._folder / "redis.sock"),
            "--save",
            "",
        ]
        arguments += [
            "--appendonly",
            "yes" if self._is_durable else "no",
            "--appendfsync",
            "always",
        ]
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [program("redis-server", "redis-server"), *arguments],
                cwd=self._folder,
                stdout=log,
                stderr=log,
            )
        eventually(self._answers, "redis-server answers")

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        with redis.Redis.from_url(self.url) as client, suppress(redis.ConnectionError):
            return bool(client.ping())
        return False


class Holder:
    """A process of ``holder.py``. A context manager: it kills the process at the end."""

    def __init__(
        self, side: str, url: str, name: str, at_most: float, *command: str
    ) -> None:
        kept = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith("SLOTWISE_")
        }
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.contrib.locks.holder",
                side,
                url,
                name,
                str(at_most),
                *(command or ("hold",)),
            ],
            cwd=ROOT,
            env=kept,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def line(self) -> str:
        """The next line that it prints; empty at its end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def token(self) -> int:
        """Wait until it holds the lock."""
        word, _, token = self.line().partition(" ")
        assert word == "held"
        return int(token)

    def go_on(self) -> None:
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
