"""Real workers with a port, and what they answer."""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request
from collections.abc import Callable

from tests.integration.shell import Process, wait_until

JOBS = """
import os, time
from slotwise import Every, JobRegistry, job, task
from slotwise.engine.loops import counting, held_claims, housekeeping, pause_ends, poller

HANGS = os.environ.get("HANG")
for module in (counting, held_claims, housekeeping, pause_ends, poller):
    for found in list(vars(module).values()):
        if HANGS and getattr(found, "name", None) == HANGS and isinstance(found, type):
            found.run_once = lambda self: time.sleep(3600)

@job(name="tick", schedule=Every("1s"))
def tick(ctx): ...

@job(name="bad", schedule=Every("1s"))
def bad(ctx):
    raise ValueError("no way")

@job(name="slow", schedule=Every("1s"))
def slow(ctx):
    ctx.wait("60s")

@task(name="mail")
def mail(ctx): ...

registry = JobRegistry(jobs=[tick, bad, slow], tasks=[mail], only=os.environ.get("ONLY", "tick,bad,mail"))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(port: int, path: str) -> tuple[int, str]:
    """Status and body; 0 if nothing listens."""
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}{path}", timeout=20
        ) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def wait_for_status(port: int, path: str, status: int, words: str = "") -> str:
    """The body, once the port answers so."""
    found: list[tuple[int, str]] = []

    def answers() -> bool:
        found.append(ask(port, path))
        return found[-1][0] == status and words in found[-1][1]

    wait_until(answers, f"{path} {status} {words}; last: {found[-1:]}", every=0.2)
    return found[-1][1]


def port_of(worker: Process) -> int:
    """The port that the worker reports in its log."""
    found: list[int] = []

    def told() -> bool:
        texts = [str(event.get("message", "")) for event in list(worker.seen)]
        found.extend(
            int(match[1])
            for text in texts
            if (match := re.search(r"metrics: port (\d+)", text))
        )
        return bool(found)

    wait_until(told, "a port in the log")
    return found[0]


def figures(text: str) -> dict[str, float]:
    """Samples by name and labels, as they are written."""
    lines = [
        line.rpartition(" ")
        for line in text.splitlines()
        if line and not line.startswith("#")
    ]
    return {name: float(value) for name, _, value in lines}


def wait_for_figures(
    port: int, enough: Callable[[dict[str, float]], bool]
) -> dict[str, float]:
    found: list[dict[str, float]] = []

    def reached() -> bool:
        found.append(figures(ask(port, "/metrics")[1]))
        return enough(found[-1])

    wait_until(reached, f"figures; last: {found[-1:]}", every=0.2)
    return found[-1]
