"""The documentation builds without a warning, by itself, and its map of the modules is the
tree.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.docs.markdown import PAGES, ROOT, name_of

INTERNALS = ROOT / "docs" / "internals.md"
#: Packages whose own packages are on the map, too.
OPEN = ("cli", "engine", "schedules", "store", "store/dialects")

#: Names in capitals on that page that are words of SQL, or tables of names in Python.
NOT_STATEMENTS = {
    "WITH",
    "SELECT",
    "UPDATE",
    "COMMANDS",
    "POLICIES",
    "LINES",
    "LISTINGS",
}


@pytest.mark.extended
def test_site_builds(tmp_path: Path) -> None:
    """mkdocs is strict: a broken link, an unknown name or an orphan is an error. Nothing is
    fetched.

    Each page names the version and links to the repository.
    """
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
        command,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr
    assert 'id="slotwise.JobRegistry"' in (tmp_path / "reference.html").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = (tmp_path / "index.html").read_text()
    assert page.count(f"slotwise {project['version']}") >= 2
    assert f'href="{project["urls"]["Repository"]}"' in page
    fetched = re.compile(
        r"""<(?:script|link|img)\b[^>]*?(?:src|href)=["']?(https?:[^"'\s>]+)"""
    )
    assert [
        found
        for page in tmp_path.glob("*.html")
        for found in fetched.findall(page.read_text())
    ] == []


def test_every_package_is_on_the_map() -> None:
    """Internals names every package, and no package or module that does not exist."""
    here = ROOT / "src" / "slotwise"
    folders = [here, *(here / name for name in OPEN)]
    packages = {
        f"{path.parent.relative_to(here)}/"
        for folder in folders
        for path in folder.glob("*/__init__.py")
    }
    text = INTERNALS.read_text()
    assert set(re.findall(r"`([\w/]+/)`", text)) - {"migrations/"} == packages
    files = re.findall(r"`([\w/]+\.py)`", text)
    assert [
        name
        for name in files
        if not any((place / name).exists() for place in (here, ROOT))
    ] == []


def test_statements_are_called_what_they_are_called() -> None:
    """The statements that internals explains exist under these names."""
    source = "".join(
        path.read_text()
        for path in (ROOT / "src/slotwise/store/dialects/postgresql").glob("*.py")
    )
    named = set(re.findall(r"`([A-Z]{4,})`", INTERNALS.read_text())) - NOT_STATEMENTS
    assert named
    assert [name for name in named if f"\n{name} = " not in source] == []


def test_pages_name_no_place_of_ours() -> None:
    """Pages say nothing about the machines on which they were written."""
    private = re.compile(r"/(?:work|root|tmp)/|localhost:\d|127\.0\.0\.1:\d")
    assert [name_of(page) for page in PAGES if private.search(page.read_text())] == []
