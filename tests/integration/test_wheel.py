"""What users install is the whole of slotwise: the wheel carries its migrations."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROVISION = """
import sqlalchemy, slotwise
from slotwise import migrate
engine = sqlalchemy.create_engine("sqlite:///provisioned.db")
with engine.connect() as connection:
    migrate.apply(connection)
print(slotwise.__file__, "scheduled_tasks" in sqlalchemy.inspect(engine).get_table_names())
"""


@pytest.mark.slow  # fetches the build backend, as any build does
def test_the_wheel_provisions_a_database(tmp_path: Path) -> None:
    """Far from the checkout, the wheel alone creates the tables; neither tests nor development files are in it."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    used = subprocess.run(
        [sys.executable, "-c", PROVISION],
        cwd=tmp_path,
        env={"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert used.stdout.split() == [str(site / "slotwise/__init__.py"), "True"]
    assert {path.name.partition("-")[0] for path in site.iterdir()} == {"slotwise"}
