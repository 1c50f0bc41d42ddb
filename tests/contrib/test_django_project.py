"""The example project of Django, with its own manage.py: migrate, runserver, worker, its tests."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.contrib.servers import EXAMPLES, environment, program, run, serving
from tests.kit.patience import PATIENCE

pytestmark = pytest.mark.extended

SHOP = EXAMPLES / "django_shop"
MANAGE = [sys.executable, "manage.py"]


def test_the_server_schedules_and_the_worker_runs(
    pg_empty_url: str, tmp_path: Path
) -> None:
    """``migrate`` creates all tables, views schedule in their transaction, and two worker
    processes drain at a stop.
    """
    env = environment(pg_empty_url)
    run([*MANAGE, "migrate", "--verbosity", "0"], SHOP, env)
    assert "No changes detected" in run(
        [*MANAGE, "makemigrations", "--check"], SHOP, env
    )
    workers = subprocess.Popen(
        [*MANAGE, "slotwise", "worker", "--processes", "2"],
        cwd=SHOP,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        command = [*MANAGE, "runserver", "--noreload", "127.0.0.1:{port}"]
        with serving(command, SHOP, tmp_path / "log", env) as server:
            assert server.post("/orders?email=ann@example.com") == (200, 1)
            server.until(lambda: server.get("/orders")[1][0]["is_mailed"])
        run([*MANAGE, "slotwise", "health"], SHOP, env)
        workers.send_signal(signal.SIGTERM)
        assert workers.wait(PATIENCE) == 0
    finally:
        workers.kill()
        workers.communicate()


SERVERS = {
    "gunicorn before a fork": [
        program("gunicorn"),
        "--workers",
        "2",
        "--preload",
        "--bind",
        "127.0.0.1:{port}",
        "shop.wsgi",
    ],
    "uvicorn": [
        program("uvicorn"),
        "--workers",
        "2",
        "--lifespan",
        "off",
        "--port",
        "{port}",
        "shop.asgi:application",
    ],
}


@pytest.mark.parametrize("command", SERVERS.values(), ids=SERVERS)
def test_servers(pg_empty_url: str, tmp_path: Path, command: list[str]) -> None:
    """Views schedule in their transaction in each process; a worker process runs the tasks."""
    env = environment(pg_empty_url)
    run([*MANAGE, "migrate", "--verbosity", "0"], SHOP, env)
    worker = subprocess.Popen(
        [*MANAGE, "slotwise", "worker"],
        cwd=SHOP,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with serving(command, SHOP, tmp_path / "log", env) as server:
            for number in range(1, 9):
                assert server.post(f"/orders?email={number}@example.com") == (
                    200,
                    number,
                )
            server.until(
                lambda: all(order["is_mailed"] for order in server.get("/orders")[1])
            )
            assert server.stop() == 0
            assert "Traceback" not in server.log
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE) == 0
    finally:
        worker.kill()
        worker.communicate()


EMBEDDED = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
from django.core.{kind} import get_{kind}_application
from slotwise.contrib.{kind} import Slotwise{KIND}
from slotwise.contrib.django import registry
application = Slotwise{KIND}(get_{kind}_application(), registry)
"""


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_a_worker_in_the_servers_processes(
    pg_empty_url: str, tmp_path: Path, kind: str
) -> None:
    """The middleware takes the function ``registry``, which is called after the fork."""
    env = environment(pg_empty_url, PYTHONPATH=str(SHOP))
    run([*MANAGE, "migrate", "--verbosity", "0"], SHOP, env)
    (tmp_path / "embedded.py").write_text(
        EMBEDDED.format(kind=kind, KIND=kind.upper())
    )
    command = {
        "wsgi": [
            program("gunicorn"),
            "--preload",
            "--bind",
            "127.0.0.1:{port}",
            "embedded:application",
        ],
        "asgi": [program("uvicorn"), "--port", "{port}", "embedded:application"],
    }[kind]
    with serving(command, tmp_path, tmp_path / "log", env) as server:
        assert server.post("/orders?email=ann@example.com") == (200, 1)
        server.until(lambda: server.get("/orders")[1][0]["is_mailed"])
        server.stop()
        assert "Traceback" not in server.log


def test_the_test_runner(pg_empty_url: str) -> None:
    """``manage.py test`` uses the test database, without a setting, and leaves the project's
    alone.
    """
    done = subprocess.run(
        [*MANAGE, "test", "--noinput"],
        cwd=SHOP,
        env=environment(pg_empty_url),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert "Ran 3 tests" in done.stderr


def test_a_worker_without_django_setup_is_refused(pg_url: str) -> None:
    """The line names the command; with DJANGO_SETTINGS_MODULE another entry sets Django up by
    itself.
    """

    def jobs(app: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [program("slotwise"), "plan", "--app", app]
        return subprocess.run(
            command,
            cwd=SHOP,
            env=environment(pg_url, **more),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    refused = jobs(
        "slotwise.contrib.django:registry", DJANGO_SETTINGS_MODULE="shop.settings"
    )
    assert (refused.returncode, refused.stderr) == (
        1,
        "error: Django is not set up; start the worker as: python manage.py "
        "slotwise worker, or call django.setup() "
        "first\n",
    )
    for app, settings in (
        ("orders.jobs", {}),
        ("orders.jobs", {"DJANGO_SETTINGS_MODULE": "shop.settings"}),
    ):
        unset = jobs(app, **settings)
        assert unset.returncode == 1
        assert unset.stderr.startswith(
            "error: importing orders.jobs needs Django, which is not set up ("
        )
        assert unset.stderr.endswith(
            "; start it as: python manage.py slotwise …, or with --app "
            "slotwise.contrib.django.worker:registry and "
            "DJANGO_SETTINGS_MODULE\n"
        )
        assert unset.stderr.count("\n") == 1
    nameless = jobs("slotwise.contrib.django.worker:registry")
    assert (
        nameless.returncode,
        "DJANGO_SETTINGS_MODULE is not set; run python" in nameless.stderr,
    ) == (1, True)
    named = jobs(
        "slotwise.contrib.django.worker:registry",
        DJANGO_SETTINGS_MODULE="shop.settings",
    )
    assert "nightly-report" in named.stdout, named.stderr
