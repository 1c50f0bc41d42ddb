#!/usr/bin/env python3
"""Everything a contributor runs, from one file and Python's standard library.

It makes a virtual environment in .venv, installs slotwise and its tools there and runs what was
asked for.
"""

from __future__ import annotations

import signal

if (
    __name__ == "__main__"
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # Ctrl-C while the rest is imported: no traceback

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".slotwise-stamp"
OLDEST = (3, 11)
SBOM = "cyclonedx-bom>=7,<8"
CONSTRAINTS = ROOT / "constraints.txt"
CONSTRAINTS_HEAD = """\
# What continuous integration tests, on Linux with CPython 3.11. Written by: python3 dev.py constraints
# Install exactly this: pip install --require-hashes --no-deps -r constraints.txt && pip install --no-deps .
"""
OLD_SQLALCHEMY = "SQLAlchemy>=2.0.30,<2.1"
#: Of three test processes, one waits for processes of its own: two cores are busy. Folders differ
#: in length by minutes, so a process that has run its share takes over tests of another.
PROGRAMS = {
    "bench": ["-m", "tools.bench"],
    "demo": ["-m", "slotwise.demo"],
    "test": ["-m", "pytest", "-n", "4", "--dist", "worksteal", "--progress"],
}
#: Tests of stores start no processes and wait for nobody: two at a time keep two cores busy.
STORES = ["-n", "2"]
#: Also the tests that are marked "extended"; thirty failures are enough to read.
ALL = ["-m", "not slow", "--maxfail", "30"]

HELP = """\
usage: python3 dev.py COMMAND [ARGUMENT ...]

  demo     see slotwise at work: a database, three workers, accidents, a verdict; about 40 s
  bench    measure speed and cost, on a database of its own, or in pairs with another version
  test     prove every promise once, against a real PostgreSQL, which is started if none is given; five minutes
  compat   run the tests of the store on PostgreSQL again, with the oldest line of SQLAlchemy that is supported
  oldest   run the tests of units and store again, with the oldest of everything that is allowed; minutes
  check    style, types, import contracts, figures of the source, and documentation
  constraints  write constraints.txt: version and hash of all that CI tests
  release  build wheel and sdist into dist/, check them, try each in an empty environment, and list what is in them
  clean    remove .venv and everything else that was generated

The first run takes a minute or more to set up .venv. What follows the command goes to the program behind it:

  python3 dev.py demo --keep               leave the demo running to look around
  python3 dev.py test --all                every test except the long forms, as before a merge; 15 minutes
  python3 dev.py test tests/unit -k retry  some tests only; paths count from the checkout
  python3 dev.py test -m slow              the long forms
  TZ=Europe/Vienna python3 dev.py test --clock "2027-10-31 01:59"
                                           tests, workers and PostgreSQL begin at this local time
  SLOTWISE_TEST_DSN=postgresql://me@host/postgres python3 dev.py test
"""


def main(words: list[str]) -> int:
    """The exit status: that of the program that was run, 2 for a command that does not exist."""
    command, arguments = (words or ["--help"])[0], words[1:]
    if command in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0 if words else 2
    if command == "clean":
        return clean()
    if command not in (
        "bench",
        "demo",
        "test",
        "compat",
        "oldest",
        "check",
        "constraints",
        "release",
    ):
        print(
            f"dev: there is no command {command!r}\n\n{HELP}", end="", file=sys.stderr
        )
        return 2
    prepare()
    if command in ("compat", "oldest"):
        return compat(arguments) if command == "compat" else oldest(arguments)
    if command in ("check", "constraints", "release"):
        return {"check": check, "constraints": constraints, "release": release}[
            command
        ]()
    if command == "test" and "--clock" in arguments:
        arguments = at_another_time(arguments)
    if "--all" in arguments:
        os.environ["TESTS_ALL"] = "1"  # generated examples in full number
    return become([*PROGRAMS[command], *forwarded(command, arguments)])


def forwarded(command: str, arguments: list[str]) -> list[str]:
    """The arguments as the program gets them: ``test --all`` stands for options of pytest."""
    if command == "test" and "--all" in arguments:
        return [*ALL, *(argument for argument in arguments if argument != "--all")]
    return arguments


def at_another_time(arguments: list[str]) -> list[str]:
    """Let tests, workers and PostgreSQL begin at the time after ``--clock``; return the other
    arguments.
    """
    from tools import clock

    place = arguments.index("--clock")
    before, after = arguments[:place], arguments[place + 1 :]
    if not after or os.environ.get("SLOTWISE_TEST_DSN"):
        stop(
            "--clock TIME is for a PostgreSQL that the tests start: unset SLOTWISE_TEST_DSN"
        )
    try:
        os.environ.update(clock.variables(after[0]))
    except (ValueError, RuntimeError) as error:
        stop(f"--clock: {error}")
    return [*before, *after[1:]]


def prepare() -> None:
    """An environment in .venv that fits this Python and this pyproject.toml; at once if it is
    there already.
    """
    if is_prepared():
        return
    import fcntl  # only here: Windows has none, and is to be told so in words

    with (ROOT / "pyproject.toml").open() as lock:
        fcntl.flock(
            lock, fcntl.LOCK_EX
        )  # of two first runs the second waits, and finds it done
        if not is_prepared():
            STAMP.unlink(missing_ok=True)
            if not has_working_environment():
                make_environment()
            install()
            STAMP.write_text(fingerprint())


def is_prepared() -> bool:
    """The stamp is written last, so an interrupted set-up has none."""
    return PYTHON.exists() and STAMP.exists() and STAMP.read_text() == fingerprint()


def fingerprint() -> str:
    """Changes with what is to be installed, with Python, and when the checkout is moved."""
    parts = [
        (ROOT / "pyproject.toml").read_bytes(),
        sys.version.encode(),
        os.fsencode(ROOT),
    ]
    return hashlib.sha256(b"\n".join(parts)).hexdigest()


def has_working_environment() -> bool:
    """Whether .venv has pip and is of this Python; one made half, or by another Python, is made
    anew.
    """
    probe = "import pip, sys; print(sys.version, sys.prefix)"
    try:
        answer = subprocess.run(
            [PYTHON, "-c", probe], capture_output=True, text=True, env=environment()
        )
    except OSError:
        return False
    return answer.stdout.strip() == f"{sys.version} {VENV}"


def make_environment() -> None:
    if importlib.util.find_spec("ensurepip") is None:
        stop(
            "this Python cannot make virtual environments; run: apt-get install python3-venv"
        )
    say(f"making {VENV} with Python {sys.version.split()[0]}")
    if subprocess.run(
        [sys.executable, "-m", "venv", "--clear", VENV], env=environment()
    ).returncode:
        stop(f"{VENV} could not be made; the reason is above")


def install() -> None:
    say("installing slotwise and its tools (a minute or more the first time)")
    pip = [
        str(PYTHON),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-compile",  # most of these modules are never imported
        "--editable",
        ".[dev]",
    ]
    done = subprocess.run(
        pip,
        cwd=ROOT,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    if done.returncode:
        print(
            done.stderr, end="", file=sys.stderr
        )  # only now: pip's warnings would fill a newcomer's first screen
        stop("pip failed, the reason is above; run the same command again to go on")
    # pytest keeps what it makes of each file's assertions: else all of its processes would do
    # that, at the same time
    collected = [str(PYTHON), "-m", "pytest", "--collect-only", "-q"]
    subprocess.run(collected, cwd=ROOT, env=environment(), capture_output=True)


def environment() -> dict[str, str]:
    """Ours with .venv in front, without what would lead Python or pip out of it."""
    dropped = (
        "PYTHONHOME",
        "PIP_USER",
        "PIP_TARGET",
        "PYTHONDONTWRITEBYTECODE",
    )  # the last: tests start many a Python
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    path = os.pathsep.join([str(VENV / "bin"), kept.get("PATH", os.defpath)])
    return {**kept, "PATH": path, "VIRTUAL_ENV": str(VENV), "NO_MKDOCS_2_WARNING": "1"}


def become(arguments: list[str]) -> NoReturn:
    """Replace ourselves by Python of .venv, so that signals and the exit status are its own.

    The demo takes a second to be imported; Ctrl-C waits for that, and for somebody who ends in
    order.
    """
    os.chdir(ROOT)
    if arguments[:2] == PROGRAMS["demo"]:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.execve(PYTHON, [str(PYTHON), *arguments], environment())


def compat(arguments: list[str]) -> int:
    """The tests that talk to databases, with an older SQLAlchemy laid in front of the installed
    one.
    """
    folder = VENV / "sqlalchemy-2.0"
    older = in_front(folder, [OLD_SQLALCHEMY])
    probe = (
        "import sqlalchemy as s; assert s.__version__.startswith('2.0.'), "
        "s.__version__; print(s.__version__)"
    )
    if subprocess.run([PYTHON, "-c", probe], cwd=ROOT, env=older).returncode:
        stop(
            f"the SQLAlchemy in {folder} is not the one that was asked for; run: "
            "python3 dev.py clean"
        )
    tests = arguments or [
        "tests/store/conformance",
        "tests/integration/test_client.py",
        "tests/integration/test_database.py",
        *("-k", "not sqlite"),
    ]
    return subprocess.run(
        [PYTHON, *PROGRAMS["test"], *STORES, *tests], cwd=ROOT, env=older
    ).returncode


def oldest(arguments: list[str]) -> int:
    """The tests of units and store, with the oldest version of everything that pyproject.toml
    allows laid in front.
    """
    wanted = oldest_allowed((ROOT / "pyproject.toml").read_text())
    digest = hashlib.sha256("\n".join(wanted).encode()).hexdigest()[:12]
    older = in_front(VENV / f"oldest-{digest}", wanted)
    tests = arguments or ["tests/unit", "tests/store"]
    return subprocess.run(
        [PYTHON, *PROGRAMS["test"], *tests], cwd=ROOT, env=older
    ).returncode


def oldest_allowed(pyproject: str) -> list[str]:
    """Each library that slotwise itself imports, pinned to its lower bound."""
    import tomllib  # only here: an older Python is to be told in words that it is too old

    project = tomllib.loads(pyproject)["project"]
    extras = project["optional-dependencies"]
    asked = [
        *project["dependencies"],
        *(one for name in ("calendars", "plot", "yaml") for one in extras[name]),
    ]
    pins = [re.sub(r">=([\d.]+).*", r"==\1", one) for one in asked]
    return [
        *pins,
        *(
            pin.replace("psycopg", "psycopg-binary")
            for pin in pins
            if pin.startswith("psycopg==")
        ),
    ]


def in_front(folder: Path, wanted: list[str]) -> dict[str, str]:
    """The environment in which these libraries hide the installed ones; made if missing, whole or
    not at all.
    """
    if not folder.exists():
        say(f"installing {' '.join(wanted)} beside the others")
        draft = folder.with_suffix(".new")
        shutil.rmtree(draft, ignore_errors=True)
        pip = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--target",
            str(draft),
        ]
        if subprocess.run(
            [PYTHON, *pip, *wanted], cwd=ROOT, env=environment()
        ).returncode:
            stop(
                "pip failed, the reason is above; run the same command again to go on"
            )
        draft.rename(folder)
    return {**environment(), "PYTHONPATH": str(folder)}


#: By name, the arguments for Python.
CHECKS = {
    "ruff check": ["-m", "ruff", "check", "."],
    "ruff format": ["-m", "ruff", "format", "--check", "."],
    "mypy": ["-m", "mypy"],
    "import contracts": [str(VENV / "bin/lint-imports"), "--no-cache", "--no-logo"],
    "figures of the source": ["tools/house.py"],
    "docs": ["tools/site.py"],
}


def check() -> int:
    """Run every check, also after one has failed."""
    failed = [name for name, command in CHECKS.items() if not passes(name, command)]
    say(f"failed: {', '.join(failed)}" if failed else "every check has passed")
    return 1 if failed else 0


def constraints() -> int:
    """Write down the version and the hash of all that a fresh .[dev] would install, as CI tests it
    on this platform.
    """
    import json

    pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--dry-run",
        "--ignore-installed",
    ]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        if subprocess.run(
            [PYTHON, *pip, "--report", report, ".[dev]"], cwd=ROOT, env=environment()
        ).returncode:
            stop("pip failed, the reason is above")
        found = json.loads(report.read_text())["install"]
    CONSTRAINTS.write_text(f"{CONSTRAINTS_HEAD}{''.join(sorted(map(pinned, found)))}")
    say(f"{CONSTRAINTS.name} has {len(found) - 1} packages")
    return 0


def pinned(found: dict[str, Any]) -> str:
    """The line of a package in pip's report; "" for slotwise itself, which is a directory."""
    name, version = (
        found["metadata"]["name"].lower().replace("_", "-"),
        found["metadata"]["version"],
    )
    archive = found["download_info"].get("archive_info")
    return (
        f"{name}=={version} --hash=sha256:{archive['hashes']['sha256']}\n"
        if archive
        else ""
    )


def release() -> int:
    """Build what is published, and try it as a user would; refuse a project that has no address
    yet.
    """
    if "//example.com/" in (ROOT / "pyproject.toml").read_text():
        stop(
            "pyproject.toml has no address of the repository yet; set "
            "project.urls, as docs/releasing.md says"
        )
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    tool = VENV / "sbom"
    if not tool.exists():
        say(f"installing {SBOM} beside the others")
        pip = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--target",
            str(tool),
            SBOM,
        ]
        if subprocess.run([PYTHON, *pip], cwd=ROOT, env=environment()).returncode:
            shutil.rmtree(tool, ignore_errors=True)
            stop(
                "pip failed, the reason is above; run the same command again to go on"
            )
    steps = {
        "build": ["-m", "build", "--outdir", str(ROOT / "dist"), str(ROOT)],
        "twine check": ["-m", "twine", "check", "--strict", str(ROOT / "dist/*")],
        "installation": [
            "-m",
            "pytest",
            "-q",
            "-m",
            "extended",
            "tests/integration/test_wheel.py",
        ],
        "site": [*CHECKS["docs"], str(ROOT / "site")],
    }
    for name, command in steps.items():
        if not passes(name, command):
            stop(f"{name} failed; the reason is above")
    shutil.make_archive(str(ROOT / "dist" / "slotwise-docs"), "zip", ROOT / "site")
    say("bill of materials")
    bill = [
        "-m",
        "cyclonedx_py",
        "requirements",
        str(CONSTRAINTS),
        "--pyproject",
        str(ROOT / "pyproject.toml"),
    ]
    written = ["--output-reproducible", "-o", str(ROOT / "dist" / "slotwise.cdx.json")]
    if subprocess.run(
        [PYTHON, *bill, *written], env={**environment(), "PYTHONPATH": str(tool)}
    ).returncode:
        stop("the bill of materials failed; the reason is above")
    say(
        "ready to be published: "
        f"{', '.join(sorted(path.name for path in (ROOT / 'dist').iterdir()))}"
    )
    return 0


def passes(name: str, command: list[str]) -> bool:
    say(name)
    return (
        subprocess.run([str(PYTHON), *command], cwd=ROOT, env=environment()).returncode
        == 0
    )


def clean() -> int:
    """Remove what can be made again; nothing that git knows."""
    names = (
        ".venv",
        "build",
        "dist",
        "site",
        ".pytest_cache",
        ".mypy_cache",
        ".ruff_cache",
        ".hypothesis",
    )
    folders = [ROOT / name for name in names]
    for source in ("src", "migrations", "tests", "examples"):
        folders += (ROOT / source).rglob("__pycache__")
    for folder in filter(Path.exists, folders):
        say(f"removing {folder}")
        shutil.rmtree(folder)
    return 0


def say(text: str) -> None:
    print(f"dev: {text}", file=sys.stderr, flush=True)


def stop(text: str) -> NoReturn:
    sys.exit(f"dev: {text}")


if __name__ == "__main__":
    if sys.version_info < OLDEST:
        stop(
            f"this is Python {sys.version.split()[0]} and slotwise needs 3.11 or "
            "newer; try: python3.13 dev.py"
        )
    if os.name == "nt":
        stop("slotwise runs on Linux and macOS; on Windows use WSL")
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
