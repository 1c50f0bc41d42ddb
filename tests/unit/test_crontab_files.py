"""Which files are read as crontabs, of which format; and what a machine may lack for them."""

from __future__ import annotations

import os
import pwd
import time
from pathlib import Path

import pytest

from slotwise.contrib.crontab import Crontabs, read_crontabs
from slotwise.contrib.crontab import crontabs as crontabs_module
from slotwise.contrib.crontab.crontabs import Format
from slotwise.contrib.crontab.reader import host_problems, runnable

LINE = "@daily root /bin/a\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Like /etc/cron.d, with all that lies about there."""
    folder = tmp_path / "cron.d"
    folder.mkdir()
    for name in ("b", "a_1-X", ".placeholder", "c.bak", "d~", "e.dpkg-old", "f.cron"):
        (folder / name).write_text(f"@daily root /bin/{name}\n")
    (folder / "sub").mkdir()
    (folder / "link").symlink_to(folder / "b")
    (folder / "broken").symlink_to(folder / "nothing")
    return folder


def lines(found: Crontabs) -> list[tuple[str, str | None, str]]:
    return [(Path(one.file).name, one.user, one.command) for one in found.entries]


def test_a_folder_is_read_as_cron_reads_it(folder: Path) -> None:
    """Names of letters, digits, - and _; links to files; by name. What is left out is said, but
    for hidden files.
    """
    found = read_crontabs(folder)
    assert lines(found) == [
        ("a_1-X", "root", "/bin/a_1-X"),
        ("b", "root", "/bin/b"),
        ("link", "root", "/bin/b"),
    ]
    notes = [
        Path(problem.file).name
        for problem in found.problems
        if problem.level == "note"
    ]
    assert notes == ["broken", "c.bak", "d~", "e.dpkg-old", "f.cron", "sub"]
    assert found.errors == []


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    """Its writer may never come; what a shell passes as /dev/fd is read."""
    os.mkfifo(tmp_path / "fifo")
    found = read_crontabs(tmp_path / "fifo")
    assert [problem.text for problem in found.errors] == [
        "it is a FIFO, whose writer may never come"
    ]
    reader, writer = os.pipe()
    os.write(writer, b"@daily /bin/a\n")
    os.close(writer)
    try:
        assert lines(read_crontabs(f"/dev/fd/{reader}"))[0][2] == "/bin/a"
    finally:
        os.close(reader)


def test_a_file_is_a_users_unless_its_place_says_otherwise(
    folder: Path, tmp_path: Path
) -> None:
    """What its name is does not matter when it is named; the place decides, or the reader."""
    mine = tmp_path / "my.crontab"
    mine.write_text("@daily /bin/a\n")
    assert lines(read_crontabs(mine, folder / "f.cron")) == [
        ("my.crontab", None, "/bin/a"),
        ("f.cron", "root", "/bin/f.cron"),
    ]
    mine.write_text(LINE)
    assert lines(read_crontabs(mine, format="system")) == [
        ("my.crontab", "root", "/bin/a")
    ]
    assert lines(read_crontabs(folder / "b", format="user")) == [
        ("b", None, "root /bin/b")
    ]


def test_users_crontabs_belong_to_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where cron keeps them, a file's name is its user's."""
    monkeypatch.setattr(crontabs_module, "_SPOOLS", (str(tmp_path),))
    (tmp_path / "jane.doe").write_text("@daily /bin/a\n")
    (tmp_path / ".tmp").write_text("@daily /bin/b\n")
    assert lines(read_crontabs(tmp_path)) == [("jane.doe", "jane.doe", "/bin/a")]
    assert lines(read_crontabs(tmp_path / "jane.doe")) == [
        ("jane.doe", "jane.doe", "/bin/a")
    ]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        pytest.param("missing", None, "there is no such file", id="missing"),
        pytest.param(
            "anacrontab",
            "1 5 cron.daily run-parts /etc/cron.daily\n",
            "another format",
            id="anacron",
        ),
        pytest.param("script", "#!/bin/sh\nexit\n", "this is a script", id="script"),
    ],
)
def test_what_is_no_crontab_is_one_error(
    name: str, text: str | None, words: str, tmp_path: Path
) -> None:
    """Not one for each of its lines; and the other files are read all the same."""
    if text is not None:
        (tmp_path / name).write_text(text)
    good = tmp_path / "good"
    good.write_text("@daily /bin/a\n")
    found = read_crontabs(tmp_path / name, good)
    (problem,) = found.problems
    assert (problem.file, problem.line, problem.level) == (
        str(tmp_path / name),
        None,
        "error",
    )
    assert words in problem.text
    assert lines(found) == [("good", None, "/bin/a")]


def test_bytes_that_are_no_text_reach_the_command(tmp_path: Path) -> None:
    """A path may be of any bytes."""
    file = tmp_path / "crontab"
    file.write_bytes(b"@daily /bin/a \xff\n")
    (one,) = read_crontabs(file).entries
    assert os.fsencode(one.command) == b"/bin/a \xff"


def test_doubles_count_over_all_files(tmp_path: Path) -> None:
    """The same line in two files is two jobs, and worth a warning."""
    for name in ("a", "b"):
        (tmp_path / name).write_text("@daily /bin/a\n")
    found = read_crontabs(tmp_path / "a", tmp_path / "b")
    assert len({one.name for one in found.entries}) == 2
    (problem,) = found.problems
    assert (problem.level, problem.place) == ("warning", f"{tmp_path / 'b'}:1")


# -- the machine ----------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "cron.d" / "a"
    file.parent.mkdir()
    file.write_text(
        "CRON_TZ=UTC\nSHELL=/no/shell\n@daily no-such-user a\n@hourly no-such-user b\n"
    )
    file.chmod(0o644)
    return file


def test_what_the_machine_lacks_is_said_once_a_file(file: Path) -> None:
    """With the first line that needs it; the level is the asker's."""
    found = read_crontabs(file)
    problems = host_problems(found.entries, "warning")
    assert [(problem.level, problem.line) for problem in problems] == [
        ("warning", 3),
        ("warning", 3),
    ]
    assert "there is no user 'no-such-user' on this host" in problems[0].text
    assert "SHELL /no/shell cannot be executed" in problems[1].text
    assert not any(map(runnable, found.entries))


def test_a_healthy_crontab_lacks_nothing(file: Path) -> None:
    me = pwd.getpwuid(os.geteuid()).pw_name
    file.write_text(f"CRON_TZ=UTC\n@daily {me} a\n")
    found = read_crontabs(file)
    assert host_problems(found.entries) == []
    assert all(map(runnable, found.entries))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's commands are at stake")
@pytest.mark.parametrize("mode", [0o664, 0o646], ids=oct)
def test_root_runs_no_file_that_others_can_write(file: Path, mode: int) -> None:
    """Whoever can write it could run anything as root; cron refuses it, too."""
    file.write_text("CRON_TZ=UTC\n@daily root a\n")
    file.chmod(mode)
    (problem,) = read_crontabs(file).problems
    assert problem.cure == f"chmod go-w {file}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_root_runs_no_file_of_another_account(file: Path) -> None:
    """Its owner could run anything as root; so could anybody who can replace it."""
    file.write_text("CRON_TZ=UTC\n@daily root a\n")
    os.chown(file, 65534, 65534)
    found = read_crontabs(file)
    assert found.entries == ()
    assert [problem.text for problem in found.problems] == [
        "it belongs to another account (uid 65534)"
    ]
    os.chown(file, 0, 0)
    file.parent.chmod(0o777)
    assert [problem.cure for problem in read_crontabs(file).problems] == [
        f"chmod o-w {file.parent}"
    ]
    file.parent.chmod(0o1777)
    assert read_crontabs(file).errors == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_root_runs_no_file_that_others_can_replace(file: Path) -> None:
    """In none of the folders above it: not their owner, not a group, not everybody."""
    file.write_text("@daily root a\n")
    grandparent = file.parent.parent
    os.chown(grandparent, 65534, 0)
    (error,) = read_crontabs(file).errors
    assert f"its directory {grandparent} belongs to another account" in error.text
    os.chown(grandparent, 0, 65534)
    grandparent.chmod(0o775)
    (error,) = read_crontabs(file).errors
    assert error.cure == f"chmod g-w {grandparent}"
    grandparent.chmod(0o777)
    (error,) = read_crontabs(file).errors
    assert error.cure == f"chmod o-w {grandparent}"
    grandparent.chmod(0o755)
    assert read_crontabs(file).errors == []


def test_an_endless_file_is_not_read() -> None:
    (error,) = read_crontabs("/dev/zero").errors
    assert "more than 1048576 bytes" in error.text


@pytest.mark.parametrize("form", ["auto", "user", "system"])
@pytest.mark.parametrize("as_folder", [False, True])
def test_a_file_of_the_spool_runs_as_its_owner(
    form: Format, as_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever format is named: what looks like a user column is the command's first word."""
    monkeypatch.setattr(crontabs_module, "_SPOOLS", (str(tmp_path),))
    file = tmp_path / "nobody"
    file.write_text("@daily root id -u\n")
    file.chmod(0o600)
    found = read_crontabs(tmp_path if as_folder else file, format=form)
    assert [(one.user, one.command) for one in found.entries] == [
        ("nobody", "root id -u")
    ]


def test_the_machines_own_zone_is_worth_a_warning(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cron would have gone by it; whoever says a zone, any, has thought of it."""
    me = pwd.getpwuid(os.geteuid()).pw_name
    monkeypatch.setenv("TZ", "Europe/Vienna")
    time.tzset()
    try:
        file.write_text(f"@daily {me} a\n")
        (problem,) = host_problems(read_crontabs(file).entries)
        assert (problem.level, "cron would read them as CET" in problem.text) == (
            "warning",
            True,
        )
        assert host_problems(read_crontabs(file, tz="UTC").entries) == []
        file.write_text(f"CRON_TZ=UTC\n@daily {me} a\n")
        assert host_problems(read_crontabs(file).entries) == []
    finally:
        monkeypatch.undo()
        time.tzset()
