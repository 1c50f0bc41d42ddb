"""The documentation's map of the modules is the tree. That its site builds without a warning is
for tools/site.py, a part of ``python3 dev.py check``.
"""

from __future__ import annotations

import re

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
