"""A forked process finds what a new interpreter would find, and ends as that would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.kit import processes
from tests.kit.processes import Forked

#: What a program may ask for when it begins, except for the modules that are there.
STATE = """
import gc, json, os, resource, signal, sys, threading
handlers = {n: str(signal.getsignal(n)) for n in signal.valid_signals()}
streams = [
    (s.encoding, s.errors, s.line_buffering, s.newlines, s.isatty(), s.fileno())
    for s in (sys.stdin, sys.stdout, sys.stderr)
]
files = sorted(n for n in os.listdir("/dev/fd") if int(n) < 100)
print(json.dumps({
    "arguments": (sys.argv[1:], sys.orig_argv[1:]), "path": sys.path, "name": __name__,
    "environment": dict(os.environ), "where": os.getcwd(), "flags": str(sys.flags),
    "warnings": sys.warnoptions,
    "signals": (handlers, str(signal.pthread_sigmask(signal.SIG_BLOCK, []))),
    "streams": streams, "files": files, "threads": threading.active_count(),
    "mask": os.umask(0), "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
    "leads": os.getsid(0) == os.getpid(), "collects": (gc.isenabled(), gc.get_threshold()),
    "file": globals().get("__file__"), "is_main": vars(sys.modules["__main__"]) is globals(),
}))
"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux")


def environment() -> dict[str, str]:
    return {**os.environ, "ONLY": "here", "TZ": "Asia/Tokyo"}


def state(*words: str, directory: Path, forked: bool) -> dict[str, Any]:
    if forked:
        text = processes.run(
            *words, directory=directory, environment=environment()
        ).stdout
    else:
        text = subprocess.run(
            [sys.executable, *words],
            cwd=directory,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        ).stdout
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize(
    "words", [("-c", STATE), ("-W", "error", "state.py"), ("-m", "state")]
)
def test_it_begins_as_an_interpreter_does(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "state.py").write_text(STATE)
    words = (*words, "one", "two words")
    forked = state(*words, directory=tmp_path, forked=True)
    assert forked == state(*words, directory=tmp_path, forked=False)


def start(code: str, directory: Path) -> Forked | subprocess.Popen[Any]:
    return processes.start(
        "-c", code, directory=directory, environment=environment(), new_session=True
    )


def test_it_ends_as_an_interpreter_does(tmp_path: Path) -> None:
    """By a status, by an error, by a signal; what stands at the end still runs."""
    codes = {
        "import sys; sys.exit(3)": (3, "", ""),
        "import atexit; atexit.register(print, 'end')": (0, "end\n", ""),
        "raise SystemExit('why')": (1, "", "why\n"),
        "import os; os.kill(os.getpid(), 15)": (-signal.SIGTERM, "", ""),
        "import threading; threading.Timer(0.01, print, ['late']).start()": (
            0,
            "late\n",
            "",
        ),
    }
    for code, ended in codes.items():
        done = processes.run("-c", code, directory=tmp_path, environment=environment())
        assert (done.returncode, done.stdout, done.stderr) == ended


def test_it_is_killed(tmp_path: Path) -> None:
    process = start("import time; print('on', flush=True); time.sleep(600)", tmp_path)
    assert isinstance(process, Forked)
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout as out, process.stderr:
        assert out.readline() == "on\n"
        assert process.poll() is None
        assert os.getsid(process.pid) == process.pid
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        process.kill()  # nothing: the number may be another process's


def test_two_at_once_know_nothing_of_each_other(tmp_path: Path) -> None:
    """The end of one comes through, though the other is still there."""
    code = "import time; time.sleep(600)"
    first, second = (start(code, tmp_path) for _ in range(2))
    for process in (first, second):
        process.kill()
        assert process.wait(60) == -signal.SIGKILL
        assert process.stdout is not None
        assert process.stderr is not None
        with process.stdout as out, process.stderr as errors:
            assert (out.read(), errors.read()) == ("", "")


def test_an_interpreter_that_would_begin_otherwise_is_a_new_one(
    tmp_path: Path,
) -> None:
    process = processes.start(
        "-c",
        "import sys; print(sys.flags.utf8_mode)",
        directory=tmp_path,
        environment={**environment(), "PYTHONUTF8": "1"},
    )
    assert isinstance(process, subprocess.Popen)
    assert process.communicate() == ("1\n", "")
