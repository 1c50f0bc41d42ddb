"""The page of laws and their tests is true: each named test exists, and runs in the five
minutes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from tests.docs.markdown import ROOT

PAGE = ROOT / "docs" / "proofs.md"


def rows() -> list[tuple[str, list[str]]]:
    """Each promise, with its tests."""
    cells = re.findall(
        r"^\| (?!law |promise |rule |---)(.+?) \| (.+?) \|$", PAGE.read_text(), re.M
    )
    return [
        (promise, re.findall(r"`(tests/[\w/]+\.py::\w+)`", tests))
        for promise, tests in cells
    ]


def test_every_law_has_tests() -> None:
    """Nine laws and the guarantees, each with a test at least."""
    promises = rows()
    assert [promise[:2] for promise, _ in promises[:9]] == [
        f"{number}." for number in range(1, 10)
    ]
    assert len(promises) > 9 + 3
    assert [promise for promise, tests in promises if not tests] == []


# it collects them all; the selection that it checks is the one without this marker
@pytest.mark.extended
def test_the_tests_of_laws_run_in_the_five_minutes() -> None:
    """With the selection that ``python3 dev.py test`` uses, which is pytest's usual one in this
    project.
    """
    named = {test for _, tests in rows() for test in tests}
    files = sorted({test.partition("::")[0] for test in named})
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "--collect-only",
            "-q",
            "-p",
            "no:cacheprovider",
            *files,
        ],
        cwd=ROOT,
        # The base Locking has tests of its own, and leaves out some of PostgreSQL's.
        env={**os.environ, "TESTS_DIALECT": ""},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    collected = {
        line.partition("[")[0] for line in run.stdout.splitlines() if "::" in line
    }
    assert sorted(named - collected) == []


def test_the_ways_in_have_tests() -> None:
    """The table of the threat model: seventeen ways, and each test that it names exists."""
    table = (
        (ROOT / "docs" / "threat-model.md")
        .read_text()
        .split("## Ways in", 1)[1]
        .split("\n## ", 1)[0]
    )
    found = re.findall(r"^\| (\d+) \| .+ \| (.+?) \|$", table, re.M)
    assert [int(number) for number, _ in found] == list(range(1, 18))
    known = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    for _, tests in found:
        for name in re.findall(r"`(.+?)`", tests):
            assert (
                (ROOT / name).exists() if "/" in name else f"def {name}(" in known
            ), name
