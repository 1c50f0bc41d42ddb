"""Forks, as preloading web servers make them: the registry is built, and used, before; each
process has its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.kit.patience import PATIENCE

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


PREAMBLE = """
import os, sys, threading, traceback
from slotwise import ConfigurationError, JobRegistry, task

ran = threading.Event()
runs = []

@task(name="work")
def work(ctx):
    runs.append(ctx.data)
    ran.set()

registry = JobRegistry(
    tasks=[work], database_url=os.environ["DATABASE_URL"], poll_interval="50ms", heartbeat_interval="200ms"
)

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def in_child(function):
    '''Run it in a forked process, and end that as os._exit does: no cleaning up of what is the parent's.'''
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            function()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return child

def succeeded(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

def backend():
    '''Which session of the server our pool's connection is.'''
    if registry.database.dialect_name != "postgresql":
        return os.getpid()
    with registry.database.main.connect() as connection:
        return connection.exec_driver_sql("select pg_backend_pid()").scalar()

def waiting():
    with registry.database.main.connect() as connection:
        return connection.exec_driver_sql("select count(*) from scheduled_tasks").scalar()
"""


def run(text: str, url: str, directory: Path) -> list[str]:
    """What the script says."""
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore:This process:DeprecationWarning",
            "-c",
            PREAMBLE + textwrap.dedent(text),
        ],
        env={**os.environ, "DATABASE_URL": url},
        cwd=directory,
        timeout=PATIENCE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.extended
def test_a_preloading_server(url: str, tmp_path: Path) -> None:
    """The parent schedules, forks, and schedules again; children schedule and run workers;
    nobody's connection is another's, and the parent's is the same before and after.
    """
    said = run(
        """
        registry.client.schedule(work, "parent, before")
        mine = backend()

        def serve():
            registry.client.schedule(work, "child")
            assert backend() != mine
            with registry:
                while not ran.wait(0.2):  # others may have taken all there was
                    registry.client.schedule(work, "child, again")
                registry.client.schedule(work, "child, running")
            assert registry.worker is None

        children = [in_child(serve) for _ in range(3)]
        say(all([succeeded(child) for child in children]))
        say(backend() == mine)
        registry.client.schedule(work, "parent, after")
        ran.clear()
        with registry:
            while waiting():
                assert ran.wait(60)
        say("parent, after" in runs)
        """,
        url,
        tmp_path,
    )
    assert said == ["True", "True", "True"]


def test_a_fork_beside_a_running_worker(pg_url: str, tmp_path: Path) -> None:
    """Its threads stayed in the parent: the child has a client, no worker, and may not start
    one.
    """
    said = run(
        """
        registry.start()
        workers = "select count(*) from scheduled_workers"

        def child():
            assert registry.worker is None
            assert registry.stop() == 0
            registry.client.schedule(work, "child")
            registry.configure(threads=3)
            try:
                registry.start()
            except ConfigurationError as error:
                assert "start it after the fork, e.g. in gunicorn's post_worker_init hook" in str(error)
            else:
                raise AssertionError("it was not refused")
            with registry.database.main.connect() as connection:
                assert connection.exec_driver_sql(workers).scalar() == 1
            registry.stop()

        say(succeeded(in_child(child)))
        say(registry.worker is not None)
        registry.client.schedule(work, "parent")
        while "parent" not in runs:
            assert ran.wait(60)
            ran.clear()
        registry.stop()
        with registry.database.main.connect() as connection:
            say(connection.exec_driver_sql(workers).scalar())
        """,
        pg_url,
        tmp_path,
    )
    assert said == ["True", "True", "0"]


@pytest.mark.extended
def test_a_fork_in_the_middle_of_sqlite(sqlite_url: str, tmp_path: Path) -> None:
    """SQLite would believe in locks that only the parent has, wait for them for ever, or harm the
    file: refused in one line, at each use. The parent goes on.
    """
    said = run(
        """
        from slotwise import DatabaseProblem

        def refused():
            for use in (lambda: registry.client.schedule(work), registry.start):
                try:
                    use()
                except DatabaseProblem as error:
                    assert "forked while its parent used the SQLite database: fork before the worker" in str(error)
                else:
                    raise AssertionError("it was not refused")

        with registry.database.main.begin() as connection:
            say(succeeded(in_child(refused)))
            say(connection.exec_driver_sql("select 1").scalar())
        say(succeeded(in_child(lambda: registry.client.schedule(work))))
        registry.client.schedule(work)
        say(waiting())
        """,
        sqlite_url,
        tmp_path,
    )
    assert said == ["True", "1", "True", "2"]


@pytest.mark.extended
def test_a_database_in_memory_is_copied_with_its_process(tmp_path: Path) -> None:
    """It is not closed, which would be its end."""
    said = run(
        """
        from slotwise import migrate
        with registry.database.migrations().connect() as connection:
            migrate.apply(connection)
        registry.client.schedule(work)
        say(succeeded(in_child(lambda: None)))
        say(waiting())
        """,
        "sqlite://",
        tmp_path,
    )
    assert said == ["True", "1"]


@pytest.mark.extended
def test_a_child_that_ends_closes_nothing_of_the_parents(
    pg_url: str, tmp_path: Path
) -> None:
    """Not even one that ends in order, with everything that Python does then: atexit, and the
    garbage collector.
    """
    said = run(
        """
        registry.client.schedule(work, 1)
        mine = backend()
        child = os.fork()
        if child == 0:
            registry.client.schedule(work, 2)
            sys.exit(0)
        say(succeeded(child))
        say(backend() == mine, waiting())
        """,
        pg_url,
        tmp_path,
    )
    assert said == ["True", "True 2"]
