"""Async connections without greenlet, which neither SQLAlchemy 2.1 nor the extra ``binary`` brings
along.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

#: A process that has no greenlet, as SQLAlchemy 2.1 does not bring it by itself.
BLOCKED = """
import sys

class NoGreenlet:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "greenlet":
            raise ModuleNotFoundError("No module named 'greenlet'", name=name)

sys.meta_path.insert(0, NoGreenlet())
"""

CLIENT = """
import asyncio, sys
import psycopg
from slotwise import JobContext, JobRegistry, task
from slotwise.errors import ConfigurationError

@task(name="mail")
def mail(ctx: JobContext) -> None: ...

async def main() -> None:
    client = JobRegistry(tasks=[mail], database_url=sys.argv[1]).client
    async with await psycopg.AsyncConnection.connect(sys.argv[1]) as connection:
        try:
            await client.aio.schedule("mail", connection=connection)
        except ConfigurationError as error:
            print(error)
    print((await client.aio.schedule("mail", id="on a thread")).id)

asyncio.run(main())
"""

HANDLER = """
import sys
import psycopg
from slotwise import Disabled, JobContext, JobRegistry, job

@job(name="close", schedule=Disabled())
async def close(ctx: JobContext) -> None:
    async with await psycopg.AsyncConnection.connect(sys.argv[1]) as connection:
        await ctx.{verb}(connection)

print(JobRegistry(jobs=[close], database_url=sys.argv[1]).run_now("close").error)
"""

MODULES = """
import importlib, pkgutil
import slotwise.contrib

for found in pkgutil.walk_packages(slotwise.contrib.__path__, "slotwise.contrib."):
    try:
        importlib.import_module(found.name)
    except ModuleNotFoundError as error:
        if error.name == "greenlet":
            print(found.name)
    except Exception as error:
        if "greenlet" in str(error):
            print(found.name)
"""

CURE = (
    "psycopg's AsyncConnection needs greenlet (No module named 'greenlet'); run: pip "
    "install 'slotwise[async]'"
)


def run(script: str, url: str) -> list[str]:
    """What it prints; it must end well."""
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + script, url],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_client_names_the_extra(pg_url: str) -> None:
    """In one line, at the first use; without a connection, on a thread, it works."""
    assert run(CLIENT, pg_url) == [CURE, "on a thread"]


@pytest.mark.parametrize(
    "verb", ["guard", pytest.param("complete_in", marks=pytest.mark.extended)]
)
def test_a_handler_names_the_extra(pg_url: str, verb: str) -> None:
    """So it stands in the ledger, at the end of the attempt's error, and no other error above
    it.
    """
    *above, last = run(HANDLER.format(verb=verb), pg_url)
    assert last == f"slotwise.errors.ConfigurationError: {CURE}"
    assert "ImportError" not in "".join(above)


def test_every_integration_loads() -> None:
    """Also those that take asynchronous connections, such as batches."""
    assert run(MODULES, "") == []
