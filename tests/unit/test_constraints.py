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
