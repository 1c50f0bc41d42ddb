"""``python tools/site.py [DIRECTORY]``: build the documentation, and say what is wrong with it.

mkdocs is strict: a broken link, an unknown name or an orphan is an error. Each page names the
version and links to the repository, and fetches nothing from elsewhere.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FETCHED = re.compile(
    r"""<(?:script|link|img)\b[^>]*?(?:src|href)=["']?(https?:[^"'\s>]+)"""
)


def main() -> int:
    with tempfile.TemporaryDirectory() as home:
        site = Path(sys.argv[1] if len(sys.argv) > 1 else home)
        command = ["-m", "mkdocs", "build", "--strict", "-q", "-f", ".mkdocs.yml"]
        built = subprocess.run(
            [sys.executable, *command, "-d", site],
            cwd=ROOT,
            env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        )
        if built.returncode:
            return built.returncode
        faults = list(faults_of(site))
    for fault in faults:
        print(f"site: {fault}", file=sys.stderr)
    return 1 if faults else 0


def faults_of(site: Path) -> Iterator[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if 'id="slotwise.JobRegistry"' not in (site / "reference.html").read_text():
        yield "the reference has no entry of JobRegistry"
    first = (site / "index.html").read_text()
    if first.count(f"slotwise {project['version']}") < 2:
        yield "the first page does not name the version at its top and bottom"
    if f'href="{project["urls"]["Repository"]}"' not in first:
        yield "the first page has no link to the repository"
    for page in site.glob("*.html"):
        for address in FETCHED.findall(page.read_text()):
            yield f"{page.name} fetches {address}"


if __name__ == "__main__":
    sys.exit(main())
