"""dev.py sets itself up from nothing, and again after everything that happens to a checkout."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

DEV = Path(__file__).parents[2] / "dev.py"

# A project that needs no index: its build backend is its own, and its pytest says what it was
# called with.
PYPROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "tiny"
version = "1"
[project.optional-dependencies]
dev = []
"""
BACKEND = """\
import zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "tiny-1-py3-none-any.whl"
    metadata = "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1\\nProvides-Extra: dev\\n"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.writestr("pytest.py", "import os, sys; print(sys.argv[1:], os.getcwd()); sys.exit(7)")
        wheel.writestr("slotwise/__init__.py", "print('importing', flush=True)\\nimport time\\ntime.sleep(1)")
        wheel.writestr("slotwise/demo.py", '''if True:
            import signal, time
            try:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
                time.sleep(60)
            except KeyboardInterrupt:
                print("ended in order")
        ''')
        wheel.writestr("tiny-1.dist-info/METADATA", metadata)
        wheel.writestr("tiny-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("tiny-1.dist-info/RECORD", "")
    return name
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of the tiny project in a path with a space."""
    root = tmp_path / "a checkout"
    root.mkdir()
    shutil.copy(DEV, root)
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / "backend.py").write_text(BACKEND)
    return root


def dev(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run it from a directory that is not the checkout."""
    command = [sys.executable, str(checkout / "dev.py"), *words]
    return subprocess.run(
        command, capture_output=True, text=True, cwd="/", check=False
    )


@pytest.mark.extended
def test_it_sets_itself_up_once_and_passes_everything_on(checkout: Path) -> None:
    """From nothing: environment, installation, program; its arguments, directory and exit status
    are right. After a failed installation no program runs, and the next run goes on from there.
    """
    (checkout / "backend.py").write_text("")
    failed = dev(checkout, "test")
    assert steps(failed)[:2] == ["making", "installing"]
    assert "dev: pip failed" in failed.stderr
    assert failed.returncode == 1
    (checkout / "backend.py").write_text(BACKEND)
    first = dev(checkout, "test", "-k", "two words")
    assert (
        first.stdout.strip()
        == f"{['-n', '4', '--dist', 'worksteal', '--progress', '-k', 'two words']} {checkout}"
    )
    assert (steps(first), first.returncode) == (["installing"], 7)
    everything = dev(checkout, "test", "--all", "tests/unit")
    assert "'-m', 'not slow', '--maxfail', '30', 'tests/unit']" in everything.stdout
    second = dev(checkout, "test")
    assert (second.stderr, second.returncode) == ("", 7)
    _ctrl_c_waits_until_the_demo_can_end_in_order(checkout)
    _what_is_outdated_is_installed_again(checkout)


def _ctrl_c_waits_until_the_demo_can_end_in_order(checkout: Path) -> None:
    """While it is imported, which takes a second or two, Ctrl-C would print a traceback from
    somewhere within.
    """
    command = [sys.executable, str(checkout / "dev.py"), "demo"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (out, err, process.returncode) == ("ended in order\n", "", 0)


def steps(answer: subprocess.CompletedProcess[str]) -> list[str]:
    """What it says it does, by first words."""
    said = answer.stderr.splitlines()
    return [line.split()[1] for line in said if line.startswith("dev: ")]


def _lose_pip(venv: Path) -> None:
    for pip in venv.glob("lib/*/site-packages/pip*"):
        shutil.rmtree(pip)


def _lose_python(venv: Path) -> None:
    (venv / "bin/python").unlink()


def _what_is_outdated_is_installed_again(checkout: Path) -> None:
    """An interrupted installation, a changed pyproject.toml, a moved checkout, an environment
    without pip: each is put right, once.
    """
    (checkout / ".venv/.slotwise-stamp").unlink()
    assert steps(dev(checkout, "test")) == ["installing"]
    (checkout / "pyproject.toml").write_text(PYPROJECT + "\n")
    assert steps(dev(checkout, "test")) == ["installing"]
    moved = checkout.rename(checkout.parent / "moved")
    assert steps(dev(moved, "test")) == ["installing"]
    assert steps(dev(moved, "test")) == []
    _is_made_anew_without(moved, _lose_pip)


def _is_made_anew_without(checkout: Path, lose: Callable[[Path], None]) -> None:
    lose(checkout / ".venv")
    (checkout / ".venv/.slotwise-stamp").unlink()
    again = dev(checkout, "test")
    assert (steps(again), again.returncode) == (["making", "installing"], 7)


@pytest.mark.slow
def test_an_environment_without_python_is_made_anew(checkout: Path) -> None:
    """Ctrl-C at any moment of the first run costs no more than another run."""
    dev(checkout, "test")
    _is_made_anew_without(checkout, _lose_python)


def test_clean_removes_what_was_made(checkout: Path) -> None:
    """Afterwards the checkout is as it was."""
    before = set(checkout.rglob("*"))
    for folder in (".venv/bin", "dist", ".mypy_cache", "src/slotwise/__pycache__"):
        (checkout / folder).mkdir(parents=True)
    assert dev(checkout, "clean").returncode == 0
    assert (
        set(checkout.rglob("*")) - {checkout / "src", checkout / "src/slotwise"}
        == before
    )


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--help"], 0, "usage:"),
        ([], 2, "usage:"),
        (["tset"], 2, "there is no command 'tset'"),
    ],
)
def test_it_explains_itself(
    checkout: Path, words: list[str], status: int, said: str
) -> None:
    """Help needs no environment, and a wrong word costs none."""
    answer = dev(checkout, *words)
    assert answer.returncode == status
    assert said in answer.stdout + answer.stderr
    assert not (checkout / ".venv").exists()


def test_it_says_what_the_machine_lacks(checkout: Path) -> None:
    """Debian without python3-venv: one line with the cure, and no traceback."""
    lacking = "import importlib.util as u, runpy, sys; f = u.find_spec; " + (
        "u.find_spec = lambda name: None if name == 'ensurepip' else f(name); "
        "sys.argv = ['dev.py', 'test']; "
        f"runpy.run_path({str(checkout / 'dev.py')!r}, run_name='__main__')"
    )
    answer = subprocess.run(
        [sys.executable, "-c", lacking], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 1
    assert answer.stderr.strip().endswith("run: apt-get install python3-venv")
    assert "Traceback" not in answer.stderr
