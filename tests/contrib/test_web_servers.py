"""The example applications under real servers: uvicorn with processes, gunicorn with a fork after
preloading.
"""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import psycopg
import pytest
from tests.contrib.servers import (
    EXAMPLES,
    Server,
    environment,
    program,
    run,
    serving,
)
from tests.kit.patience import PATIENCE

pytestmark = pytest.mark.extended

MAILED = [{"id": 1, "email": "ann@example.com", "is_mailed": True}]


def workers(url: str) -> int:
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT count(*) FROM scheduled_workers").fetchone()
    assert found is not None
    return int(found[0])


def buy(server: Server) -> None:
    """An order is taken, and its mail is sent."""
    assert server.post("/orders?email=ann@example.com") == (200, 1)
    server.until(lambda: server.get("/orders") == (200, MAILED))


GUNICORN = [
    program("gunicorn"),
    "main:app",
    "--workers",
    "2",
    "--bind",
    "127.0.0.1:{port}",
]
ASGI_SERVERS = {
    "uvicorn": [program("uvicorn"), "main:app", "--workers", "2", "--port", "{port}"],
    "gunicorn with its own worker": [*GUNICORN, "--worker-class", "asgi"],
    "gunicorn with uvicorn's": [
        *GUNICORN,
        "--worker-class",
        "uvicorn_worker.UvicornWorker",
        "--preload",
    ],
}


@pytest.mark.parametrize("command", ASGI_SERVERS.values(), ids=ASGI_SERVERS)
def test_asgi_servers_with_two_processes(
    pg_url: str, tmp_path: Path, command: list[str]
) -> None:
    """Each process has a worker; a stop drains both, and they sign out."""
    with serving(
        command, EXAMPLES / "fastapi_shop", tmp_path / "log", environment(pg_url)
    ) as server:
        buy(server)
        server.until(lambda: workers(pg_url) == 2)
        assert server.get("/health/ready") == (
            200,
            {"state": "running", "reason": None},
        )
        server.stop()
        assert workers(pg_url) == 0, server.log


def test_gunicorn_with_preload(pg_empty_url: str, tmp_path: Path) -> None:
    """The application is built before the fork; workers start after it, one in each process that
    serves.
    """
    directory, env = EXAMPLES / "flask_shop", environment(pg_empty_url)
    assert "applied" in run(
        [program("flask"), "slotwise", "db", "upgrade"], directory, env
    )
    command = [
        program("gunicorn"),
        "--workers",
        "2",
        "--preload",
        "--bind",
        "127.0.0.1:{port}",
        "app:create_app()",
    ]
    with serving(command, directory, tmp_path / "log", env) as server:
        buy(server)
        server.until(lambda: server.get("/orders") and workers(pg_empty_url) == 2)
        assert server.stop() == 0
        assert workers(pg_empty_url) == 0, server.log


BEFORE_THE_FORK = """
from app import create_app, slotwise

app = create_app()
slotwise.start()
"""


def test_a_start_before_gunicorns_fork_is_refused(pg_url: str, tmp_path: Path) -> None:
    """Requests fail with one line that names the hook; the same start in the hook works."""
    env = environment(pg_url, PYTHONPATH=str(EXAMPLES / "flask_shop"))
    (tmp_path / "wrong.py").write_text(BEFORE_THE_FORK)
    gunicorn = [
        program("gunicorn"),
        "--workers",
        "1",
        "--preload",
        "--bind",
        "127.0.0.1:{port}",
    ]
    with serving(
        [*gunicorn, "wrong:app"], tmp_path, tmp_path / "log", env, status=500
    ) as server:
        assert (
            "which has none; start it in gunicorn's post_worker_init hook, or without --preload"
            in server.log
        )
    hook = "def post_worker_init(worker):\n    from app import slotwise\n    slotwise.start()\n"
    (tmp_path / "gunicorn.conf.py").write_text(hook)
    with serving(
        [*gunicorn, "app:create_app()"], tmp_path, tmp_path / "log", env
    ) as server:
        server.until(lambda: workers(pg_url) == 1)
        buy(server)


def test_flask_workers_in_processes(pg_url: str) -> None:
    """``flask slotwise worker --processes 2`` finds the application in each process."""
    process = subprocess.Popen(
        [
            program("flask"),
            "--app",
            "app:create_app",
            "slotwise",
            "worker",
            "--processes",
            "2",
        ],
        cwd=EXAMPLES / "flask_shop",
        env=environment(pg_url),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        said = ""
        while said.count("worker_start") < 2 and (line := process.stderr.readline()):
            said += line
        assert said.count("worker_start") == 2, said
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.communicate()
