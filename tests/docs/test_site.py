"""The documentation builds without a warning, by itself, and its map of the modules is the tree."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.docs.markdown import PAGES, ROOT, name_of

INTERNALS = ROOT / "docs" / "internals.md"
#: Packages whose modules the map names one by one; it names all others as a whole.
OPEN = ("engine", "store")


def test_site_builds(tmp_path: Path) -> None:
    """mkdocs is strict: a broken link, an unknown name or an orphan is an error. Nothing is fetched."""
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-f",
        str(ROOT / ".mkdocs.yml"),
        "-d",
        str(tmp_path),
    ]
    run = subprocess.run(
        command, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 0, run.stderr
    assert 'id="slotwise.JobRegistry"' in (tmp_path / "reference.html").read_text()
    fetched = re.compile(r"""<(?:script|link|img)\b[^>]*?(?:src|href)=["']?(https?:[^"'\s>]+)""")
    assert [found for page in tmp_path.glob("*.html") for found in fetched.findall(page.read_text())] == []


def test_every_module_is_on_the_map() -> None:
    """Internals names every module of the core and every other package, and none that is not there."""
    here = ROOT / "src" / "slotwise"
    modules = {path.name for folder in (here, *(here / name for name in OPEN)) for path in folder.glob("[!_]*.py")}
    packages = {path.parent.name for path in here.glob("*/__init__.py")} - set(OPEN)
    text = INTERNALS.read_text()
    assert {name.rpartition("/")[2] for name in re.findall(r"[\w/]+\.py", text)} == modules
    assert packages - set(re.findall(r"`(\w+)/`", text)) == set()


def test_statements_are_called_what_they_are_called() -> None:
    """The statements that internals explains exist under these names."""
    source = "".join(path.read_text() for path in (ROOT / "src" / "slotwise" / "store").glob("postgresql_*.py"))
    named = set(re.findall(r"`([A-Z]{4,})`", INTERNALS.read_text())) - {"WITH", "SELECT", "UPDATE"}
    assert named
    assert [name for name in named if f"\n{name} = " not in source] == []


def test_pages_name_no_place_of_ours() -> None:
    """Pages say nothing about the machines on which they were written."""
    private = re.compile(r"/(?:work|root|tmp)/|localhost:\d|127\.0\.0\.1:\d")
    assert [name_of(page) for page in PAGES if private.search(page.read_text())] == []
