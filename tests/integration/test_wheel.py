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
from tests.integration.test_demo import Demo

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
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**clean_environment(), **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (
        f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    )
    return done.stdout


def clean_environment() -> dict[str, str]:
    """Ours, without what leads Python or slotwise to this checkout."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLOTWISE_", "PYTHON"))
    }


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


def test_a_newcomer_gets_from_installation_to_a_run_and_to_the_demo(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    """In an empty environment: install, init, tables, one run, the ledger; then the extra with a
    PostgreSQL, and the demo has three workers on it. Outside of any checkout.

    The wheel is made from the sdist, so installing the sdist would prove nothing further. How the
    demo ends is told by its own tests.
    """
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env", cwd=tmp_path)
    binaries = tmp_path / "env" / "bin"
    home = tmp_path / "shop"
    pip = (sys.executable, "-m", "pip", "--python", binaries / "python")
    install = (*pip, "install", "--quiet", "--no-compile")
    run(*install, f"{files[0]}[binary]", cwd=tmp_path)
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
    run(*install, f"{files[0]}[embedded]", cwd=tmp_path)
    command = (str(slotwise), "demo")
    with Demo(*command, cwd=tmp_path, env=clean_environment()) as play:
        play.read_until("SIGKILL: .* died in the middle of report")
        assert play.interrupt() == 130
