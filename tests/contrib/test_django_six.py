"""Django 6, which needs Python 3.12: the tests of tasks, migrations and transactions, in an
environment of their own.

The ordinary environment has Django 5.2 where its Python is older.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import django
import pytest
from tests.kit.programs import missing

from slotwise.embedded import EmbeddedPostgres, GivenPostgres

pytestmark = [pytest.mark.extended, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
NEEDS = (3, 12)
TESTS = ["tests/contrib/test_django_tasks.py", "tests/contrib/test_django.py"]
CORE = (
    "test_django_tasks or migrations or makemigrations or "
    "commits_with_the_transaction or on_commit or async or types "
    "or admin_reads"
)


def interpreters() -> Iterator[str]:
    """Yield Pythons that may be new enough: on the path, and those of pyenv."""
    yield sys.executable
    for minor in range(14, NEEDS[1] - 1, -1):
        if found := shutil.which(f"python3.{minor}"):
            yield found
    yield from map(
        str, sorted(Path.home().glob(".pyenv/versions/3.*/bin/python"), reverse=True)
    )


def new_enough(python: str) -> bool:
    probe = f"import ensurepip, ssl, venv, sys; sys.exit(not {NEEDS} <= sys.version_info < (3, 15))"
    return subprocess.run([python, "-c", probe], capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def python() -> str:
    """Python of an environment with Django 6; made once, and kept in .venv."""
    found = next(filter(new_enough, interpreters()), None)
    if found is None:
        text = (
            "Django 6 needs Python 3.12 or newer; none is on the path or in ~/.pyenv: "
            "install one, e.g. with pyenv"
        )
        missing(text)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        "psycopg[binary]",
        "Django>=6,<7",
        "pytest",
        "pytest-timeout",
        "pytest-xdist",
    ]
    digest = hashlib.sha256("\n".join([found, *wanted]).encode()).hexdigest()[:12]
    home = Path(sys.prefix) / f"django-6-{digest}"
    made = str(home / "bin" / "python")
    if not (home / "made").exists():
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            made,
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-compile",
        ]
        for command in (
            [found, "-m", "venv", "--clear", "--without-pip", str(home)],
            [*pip, *wanted],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        (home / "made").touch()
    return made


@pytest.mark.skipif(
    django.VERSION >= (6,),
    reason="the ordinary environment has Django 6, so its tests have run on it",
)
def test_django_six(python: str, postgres: EmbeddedPostgres | GivenPostgres) -> None:
    """Tasks with Django's own backend, migrations, schedule in atomic: the same tests pass."""
    kept = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("PYTEST_", "COV_"))
    }
    done = subprocess.run(
        [
            python,
            "-m",
            "pytest",
            "-q",
            "-m",
            "not slow",
            "-k",
            CORE,
            "-p",
            "no:cacheprovider",
            *TESTS,
            "--override-ini",
            f"pythonpath={ROOT} {ROOT / 'src'}",
        ],
        cwd=ROOT,
        env={
            **kept,
            "SLOTWISE_TEST_DSN": postgres.dsn,
            "PYTHONPATH": str(ROOT / "src"),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    version = subprocess.run(
        [python, "-m", "django", "--version"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert version.startswith("6."), version
