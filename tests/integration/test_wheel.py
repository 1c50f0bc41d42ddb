"""What users install is the whole of slotwise: wheel and sdist, each in an environment with
nothing else.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.extended,
    pytest.mark.timeout(400),
]  # fetches the build backend and all that slotwise needs


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Wheel and sdist, built as for a release: the wheel from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def run(*command: object, cwd: Path, **environment: str) -> str:
    """What a command writes to stdout; it must end with 0."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLOTWISE_", "PYTHON"))
    }
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**kept, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (
        f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    )
    return done.stdout


def test_the_index_accepts_them(files: tuple[Path, Path], tmp_path: Path) -> None:
    """Metadata are valid, and the README renders."""
    assert (
        run(
            sys.executable, "-m", "twine", "check", "--strict", *files, cwd=tmp_path
        ).count("PASSED")
        == 2
    )


def test_they_hold_what_they_should(files: tuple[Path, Path]) -> None:
    """The wheel has package, types marker, migrations and licence, and nothing of the tests; the
    sdist has the rest.
    """
    wheel, sdist = files
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"slotwise"}
    assert {"slotwise/py.typed", "slotwise/migrations/env.py"} <= set(names)
    assert [name for name in names if name.endswith("licenses/LICENSE")]
    packaged = {
        name
        for name in names
        if name.endswith(".py") and not name.startswith("slotwise/migrations")
    }
    assert packaged == {
        str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")
    }
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        "README.md",
        "LICENSE",
        "SECURITY.md",
        "dev.py",
        "docs/changelog.md",
        "tests/conftest.py",
    }
    assert wanted <= inside


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_a_newcomer_gets_from_installation_to_a_run(
    kind: str, files: tuple[Path, Path], tmp_path: Path
) -> None:
    """In an empty environment: install, init, tables, one run, the ledger; outside of any
    checkout.
    """
    file = dict(zip(("wheel", "sdist"), files, strict=True))[kind]
    run(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    binaries, home = tmp_path / "env" / "bin", tmp_path / "shop"
    run(binaries / "pip", "install", "--quiet", f"{file}[binary]", cwd=tmp_path)
    slotwise = binaries / "slotwise"
    address = {"DATABASE_URL": f"sqlite:///{tmp_path}/jobs.db"}
    assert run(slotwise, "--version", cwd=tmp_path).startswith("slotwise 0.")
    assert "slotwise db upgrade" in run(
        slotwise, "init", home, cwd=tmp_path, **address
    )
    assert "sw0001" in run(slotwise, "db", "upgrade", cwd=home, **address)
    run(slotwise, "run", "nightly-report", cwd=home, **address)
    assert "succeeded" in run(slotwise, "slots", "nightly-report", cwd=home, **address)
    located = run(
        binaries / "python",
        "-c",
        "import slotwise; print(slotwise.__file__)",
        cwd=home,
    )
    assert located.startswith(str(tmp_path / "env"))


def test_the_demo_runs_from_the_wheel(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    """``pip install 'slotwise[embedded]' && slotwise demo`` ends with a clean verdict, with a
    PostgreSQL of its own.
    """
    run(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    run(
        tmp_path / "env/bin/pip",
        "install",
        "--quiet",
        f"{files[0]}[embedded]",
        cwd=tmp_path,
    )
    written = run(tmp_path / "env/bin/slotwise", "demo", cwd=tmp_path)
    assert "every slot is accounted for" in written
    assert "slotwise init" in written
