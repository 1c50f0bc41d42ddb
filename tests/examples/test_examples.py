"""Every example runs with the one command that its docstring names, and prints what its docstring
says.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kit import processes

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(
    path for path in (ROOT / "examples").glob("*.py") if not path.name.startswith("_")
)

#: One of each kind: a job, a task, what is written in the caller's transaction, an event loop,
#: pods.
FIRST = ("quick_start", "one_time_task", "guarded_write", "async_job", "cron_job_pods")


@pytest.fixture(params=["postgresql", "sqlite"])
def address(request: pytest.FixtureRequest) -> str:
    """An empty database; without DATABASE_URL an example makes a SQLite file of its own."""
    return (
        str(request.getfixturevalue("pg_empty_url"))
        if request.param == "postgresql"
        else ""
    )


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(
            one, id=one.stem, marks=[] if one.stem in FIRST else pytest.mark.extended
        )
        for one in EXAMPLES
    ],
)
def test_example_prints_what_it_promises(example: Path, address: str) -> None:
    """An example ends by itself with exit status 0, says nothing on stderr, and prints the
    promised lines in order.
    """
    kept = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith("SLOTWISE_")
    }
    run = processes.run(
        *("-W", "error", str(example)),
        directory=Path.cwd(),
        environment={**kept, "DATABASE_URL": address},
    )
    assert (run.returncode, run.stderr) == (0, "")
    printed = iter([_without_times(line) for line in run.stdout.splitlines()])
    missing = [
        line for line in _promised(example) if _without_times(line) not in printed
    ]
    assert not missing, f"not printed: {missing}\n{run.stdout}"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_names_its_command(example: Path) -> None:
    """The docstring of an example says how to start it."""
    assert f"    python examples/{example.name}\n" in _docstring(example)


def _docstring(example: Path) -> str:
    return ast.get_docstring(ast.parse(example.read_text())) or ""


def _promised(example: Path) -> Iterator[str]:
    """The indented lines after the word "prints"."""
    _, _, printed = _docstring(example).partition("\nprints")
    lines = [line[4:] for line in printed.splitlines() if line.startswith("    ")]
    assert lines, f"{example.name} does not say what it prints"
    yield from lines


def _without_times(line: str) -> str:
    """Times of day and fractions of seconds differ from run to run."""
    return re.sub(r"\d+\.\d+|\d\d:\d\d:\d\d", "~", line)
