"""The constraints file: one version and hash for each package, and none that pyproject.toml asks
for is missing.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_constraints_have_hashes_and_cover_the_dependencies() -> None:
    """No line names a place; each dependency and each library of the extra ``dev`` has one."""
    text = (ROOT / "constraints.txt").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert [
        line
        for line in lines
        if not re.fullmatch(r"[a-z0-9.-]+==[\w.+!]+ --hash=sha256:[0-9a-f]{64}", line)
    ] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = project["dependencies"] + project["optional-dependencies"]["dev"]
    names = {re.split(r"[\[>=<;]", one)[0].lower() for one in asked} - {"slotwise"}
    assert names <= {line.split("==")[0] for line in lines}


#: The first versions without the advisory that is named.
SAFE = {
    "Django": (
        "5.2.9",
        "CVE-2025-64459, SQL injection by the names of keyword arguments",
    ),
    "Flask": ("3.1.1", "CVE-2025-47278, sessions signed with an old key"),
    "starlette": (
        "0.49.1",
        "CVE-2025-62727, a Range header that takes quadratic time",
    ),
    "pillow": ("10.3", "CVE-2024-28219, a buffer overflow"),
    "PyYAML": ("6", "CVE-2020-14343, code run by full_load"),
}


def test_lower_bounds_are_above_known_advisories() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    asked = {one for name, extra in extras.items() if name != "dev" for one in extra}
    for library, (version, advisory) in SAFE.items():
        bound = f"{library}>={version}"
        found = [one for one in asked if re.match(rf"{library}[^\w-]", one)]
        assert found, library
        assert all(one.split(",")[0] == bound for one in found), advisory
