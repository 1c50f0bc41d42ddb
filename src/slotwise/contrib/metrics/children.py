"""The worker processes of a supervisor as one source of health and figures. Each serves JSON on a
Unix socket, and the supervisor asks all of them at each request.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, RemoteDisconnected
from pathlib import Path
from typing import Final, TypeAlias

from slotwise.contrib.metrics.figures import Snapshot, combined, from_plain
from slotwise.contrib.metrics.health import ProbeResult

#: How long a child may take to answer, in seconds.
SLOW_CHILD: Final = 3.0

#: What a child reports, as JSON.
Told: TypeAlias = "dict[str, list[object]]"


class Children:
    """The worker processes of a supervisor as one source. Each serves on a socket in
    ``directory``.

    A child that has ended is not counted: the supervisor starts another one. One that does not
    answer is not alive. All ``count`` of them must be ready for the whole to be ready.
    """

    def __init__(self, count: int) -> None:
        folder = tempfile.gettempdir()
        # The name of a Unix socket is at most about 100 bytes long.
        self.directory = Path(
            tempfile.mkdtemp(
                prefix="slotwise-", dir=folder if len(folder) < 60 else "/tmp"
            )
        )
        self._count = count
        self._pool = ThreadPoolExecutor(
            min(max(count, 1), 64), thread_name_prefix="slotwise-child-status"
        )

    def close(self) -> None:
        self._pool.shutdown(wait=False)
        shutil.rmtree(self.directory, ignore_errors=True)

    def check(self) -> ProbeResult:
        found = self._ask("/status")
        problems = [
            f"process {pid}: {problem}"
            for pid, one in found.items()
            for problem in _problems(one)
        ]
        if (missing := self._count - len(found)) > 0:
            problems.append(f"{missing} of {self._count} worker processes are not up")
        return ProbeResult(
            is_alive=all(
                one is not None and bool(one["alive"]) for one in found.values()
            ),
            is_ready=missing <= 0
            and all(one is not None and bool(one["ready"]) for one in found.values()),
            problems=tuple(problems),
        )

    def snapshot(self) -> Snapshot:
        return combined(
            from_plain(one)
            for one in self._ask("/figures").values()
            if one is not None
        )

    def _ask(self, path: str) -> dict[str, Told | None]:
        """Ask all children at once; return the answers by process, None where there is none in
        time.
        """
        places = sorted(self.directory.glob("*.sock"))
        answers = self._pool.map(lambda place: _asked(place, path), places)
        return {
            place.stem: told
            for place, (is_there, told) in zip(places, answers, strict=True)
            if is_there
        }


def _problems(told: Told | None) -> list[str]:
    if told is None:
        return ["does not answer"]
    problems = told["problems"]
    return [str(one) for one in problems] if isinstance(problems, list) else []


def _asked(place: Path, path: str) -> tuple[bool, Told | None]:
    """Return whether a child listens at this place, and its answer.

    Race: a child that was killed leaves its socket behind, and nothing listens there; the next one
    has another name.
    """
    connection = _UnixConnection(place)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        told = json.loads(answer.read())
        return True, told if answer.status == HTTPStatus.OK and isinstance(
            told, dict
        ) else None
    except (ConnectionRefusedError, FileNotFoundError):
        with suppress(OSError):
            place.unlink()
        return False, None
    except (
        ConnectionResetError,
        BrokenPipeError,
        RemoteDisconnected,
    ):  # it has ended just now
        return False, None
    except (OSError, HTTPException, ValueError):
        return True, None
    finally:
        connection.close()


class _UnixConnection(HTTPConnection):
    def __init__(self, place: Path) -> None:
        super().__init__("localhost", timeout=SLOW_CHILD)
        self._place = place

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._place))


def place_of_child(directory: Path) -> Path:
    """Return where this process serves, as a child of a supervisor that looks into
    ``directory``.
    """
    return directory / f"{os.getpid()}.sock"
