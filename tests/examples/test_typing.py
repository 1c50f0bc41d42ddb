"""User-style samples pass mypy and pyright as strict as they can be, and mistakes are found by
both.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.extended

SAMPLES = Path(__file__).parent / "typing"
GOOD = ["calls.py", "classes.py", "functions.py", "tasks.py"]
MISTAKES = ["wrong.py", "wrong_calls.py", "wrong_tasks.py"]

Check = Callable[..., set[tuple[str, int, str]]]


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A user's project: the samples, no configuration of ours, and pyright at its strictest."""
    for sample in SAMPLES.glob("*.py"):
        (tmp_path / sample.name).write_text(sample.read_text())
    strict = {"typeCheckingMode": "strict", "include": [*GOOD, *MISTAKES]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(strict))
    return tmp_path


def mypy(workplace: Path, *files: str) -> set[tuple[str, int, str]]:
    """What mypy complains about: file, line, message."""
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-error-summary",
            "--cache-dir=cache",
            *files,
        ],
        cwd=workplace,
        capture_output=True,
        text=True,
        timeout=250,
    )
    found = re.findall(r"^(.+?):(\d+): error: (.*)$", run.stdout, re.MULTILINE)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    return {(file, int(line), text) for file, line, text in found}


def pyright(workplace: Path, *files: str) -> set[tuple[str, int, str]]:
    """What pyright complains about."""
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pyright",
            "--outputjson",
            "--pythonpath",
            sys.executable,
            *files,
        ],
        cwd=workplace,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    found = json.loads(run.stdout)["generalDiagnostics"]
    return {
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1, one["message"])
        for one in found
    }


@pytest.mark.timeout(300)
@pytest.mark.parametrize("check", [mypy, pyright])
def test_samples_pass_and_mistakes_are_found(check: Check, workplace: Path) -> None:
    """Handlers of both colours, injected objects, decorators, the builder: not a word from a
    strict checker; and a wrong type in a job is an error where it stands, before anything runs.
    """
    found: dict[str, set[int]] = {file: set() for file in (*GOOD, *MISTAKES)}
    for file, line, _ in check(workplace, *found):
        found[file].add(line)
    assert found == {
        file: _wrong_lines(file) if file in MISTAKES else set() for file in found
    }


def test_samples_are_many() -> None:
    """At least forty mistakes, and forty right uses whose type is asserted."""
    assert sum(len(_wrong_lines(file)) for file in MISTAKES) >= 40
    assert (
        sum((SAMPLES / file).read_text().count("assert_type(") for file in GOOD) >= 40
    )


def _wrong_lines(file: str) -> set[int]:
    lines = (SAMPLES / file).read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
