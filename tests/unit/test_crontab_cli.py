"""``slotwise crontab``: for people and for pipelines."""

from __future__ import annotations

import json
import os
import pwd
import runpy
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.unit.test_crontab import SYSTEM

from slotwise import InvalidCrontab, JobRegistry
from slotwise.cli.crontabs import CrontabChoice
from slotwise.cli.entry import status
from slotwise.cli.shared import exits
from slotwise.contrib.commands import CommandJob
from slotwise.contrib.crontab import parse_crontab, read_crontabs
from slotwise.contrib.crontab.crontabs import module_text
from slotwise.inspect import json_value
from slotwise.spi import define

GOOD = "CRON_TZ=Europe/Vienna\n0 2 * * * /bin/a%b\n"
BAD = "CRON_TZ=UTC\n61 * * * * /bin/a\n@daily /bin/b\n@reboot /bin/c\nPATH=$PATH\n"

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory and no settings around."""
    monkeypatch.chdir(tmp_path)
    for name in (
        "DATABASE_URL",
        "SLOTWISE_DATABASE_URL",
        "SLOTWISE_APP",
        "SLOTWISE_CONFIG",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write(tmp_path / "good", GOOD)


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    return write(tmp_path / "bad", BAD)


def write(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o644)
    return file


# -- check ----------------------------------------------------------------------------------------


def test_check_says_what_would_run(good: Path, capsys: Capture) -> None:
    """A table of the jobs on stdout, nothing but the number of lines on stderr, and success."""
    assert status(["crontab", str(good)]) == exits.OK
    out, err = capsys.readouterr()
    (row,) = out.splitlines()[1:]
    (name,) = (one.name for one in read_crontabs(good).entries)
    for cell in (name, "0 2 * * *", "Europe/Vienna", "/bin/a", f"{good}:2"):
        assert cell in row
    assert err.splitlines()[1:] == ["all lines can run: 1"]
    assert "note: CRON_TZ moves the lines below" in err


def test_check_says_all_that_is_wrong(
    bad: Path, good: Path, tmp_path: Path, capsys: Capture
) -> None:
    """One line for each problem, the place first, over all files; and failure, for pipelines."""
    assert (
        status(["crontab", str(bad), str(good), str(tmp_path / "none")])
        == exits.FAILED
    )
    places = [line.split(" ")[:2] for line in capsys.readouterr().err.splitlines()]
    assert [place for place in places if place[1] != "note:"] == [
        [f"{bad}:2:", "error:"],
        [f"{bad}:4:", "error:"],
        [f"{bad}:5:", "warning:"],
        [f"{tmp_path}/none:", "error:"],
        ["3", "problems"],
    ]


def test_check_can_be_strict(tmp_path: Path) -> None:
    """Warnings fail if asked to, notes never."""
    file = write(tmp_path / "crontab", "CRON_TZ=UTC\nMAILTO=joe\n@daily /bin/a\n")
    assert status(["crontab", "--strict", str(file)]) == exits.OK
    write(file, "CRON_TZ=UTC\nPATH=$PATH\n@daily /bin/a\n")
    assert status(["crontab", str(file)]) == exits.OK
    assert status(["crontab", "--strict", str(file)]) == exits.FAILED


def test_check_for_programs(bad: Path, capsys: Capture) -> None:
    """--json has the jobs, the problems and the verdict in one object, and nothing else is
    written.
    """
    assert status(["crontab", "--json", str(bad)]) == exits.FAILED
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["ok"], err) == (False, "")
    assert [
        (each["file"], each["line"], each["level"]) for each in found["problems"]
    ] == [
        (str(bad), 1, "note"),
        (str(bad), 2, "error"),
        (str(bad), 4, "error"),
        (str(bad), 5, "warning"),
    ]
    assert all(each["text"] and each["cure"] for each in found["problems"])
    (job,) = found["jobs"]
    assert {
        name: job[name]
        for name in ("file", "line", "time", "zone", "user", "command", "stdin", "env")
    } == {
        "file": str(bad),
        "line": 3,
        "time": "@daily",
        "zone": "UTC",
        "user": None,
        "command": "/bin/b",
        "stdin": None,
        "env": {},
    }
    assert job["next_slot"].endswith("T00:00:00Z")


def test_check_plans_an_h_as_the_worker_does(tmp_path: Path, capsys: Capture) -> None:
    """By the name of the job, the second of two equal lines too; and the other lines are planned
    as ever.
    """
    file = write(
        tmp_path / "crontab",
        "CRON_TZ=UTC\nH H(1-5) * * * /bin/a\nH H(1-5) * * * /bin/a\n@daily /bin/b\n",
    )
    assert status(["crontab", "--json", str(file)]) == exits.OK
    found = {
        job["job"]: job["next_slot"]
        for job in json.loads(capsys.readouterr().out)["jobs"]
    }
    jobs = read_crontabs(file).jobs()
    now = datetime.now(UTC)
    assert [found[job.name] for job in jobs] == [
        json_value(job.schedule.bind(job.name).next_after(now)) for job in jobs
    ]
    assert len(set(found.values())) == 3
    assert status(["crontab", str(file)]) == exits.OK


def test_check_reads_the_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """As in ``crontab -l | slotwise crontab -``; options say the format and the zone."""
    reading, writing = os.pipe()
    os.write(writing, b"0 2 * * * www-data /bin/a\n")
    os.close(writing)
    with os.fdopen(reading) as given:
        monkeypatch.setattr(sys, "stdin", given)
        words = [
            "crontab",
            "--json",
            "--crontab-format",
            "system",
            "--crontab-tz",
            "Europe/Vienna",
            "-",
        ]
        assert status(words) == exits.OK
    (job,) = json.loads(capsys.readouterr().out)["jobs"]
    assert (job["file"], job["user"], job["zone"]) == (
        "(stdin)",
        "www-data",
        "Europe/Vienna",
    )


def test_nothing_in_a_crontab_moves_the_terminal(
    tmp_path: Path, capsys: Capture
) -> None:
    """Control characters are spelled out wherever they are shown."""
    file = write(
        tmp_path / "crontab", "CRON_TZ=\x1b[31m\n@daily \x1b[2Ja\n61 \x07 * * * a\n"
    )
    status(["crontab", str(file)])
    assert "\x1b" not in "".join(capsys.readouterr())


# -- import ---------------------------------------------------------------------------------------


def test_import_makes_a_module_that_runs_the_same(
    tmp_path: Path, capsys: Capture
) -> None:
    """The jobs of the module are those that a worker would make of the file, names included."""
    text = (
        f"SLOTWISE_TIMEOUT=90s\nSLOTWISE_ON_LOST=give_up\n{SYSTEM}CRON_TZ=Europe/Vienna\n# "
        'say "it\'s"\n'
    )
    text += '0 2 * * * nobody mail \'a b\' "c"%it\'s "d"%\\%\n'
    file = write(tmp_path / "crontab", text)
    assert (
        status(["crontab", "-o", "-", "--crontab-format", "system", str(file)])
        == exits.OK
    )
    module = write(tmp_path / "imported.py", capsys.readouterr().out)
    found = runpy.run_path(str(module))
    assert isinstance(found["registry"], JobRegistry)
    wanted = parse_crontab(text, system=True).jobs()
    assert list(map(told, found["jobs"])) == list(map(told, wanted))
    assert '# say "it\'s"\n' in module.read_text()


def told(job: CommandJob) -> tuple[object, ...]:
    definition = define(job)
    shell = job.command.argv
    rest = {
        name: getattr(job.command, name) for name in ("env", "cwd", "user", "stdin")
    }
    return (
        definition.name,
        definition.schedule,
        definition.on_lost,
        definition.timeout,
        shell,
        bool(job.command.inherit_env),
        rest,
    )


def test_a_module_is_formatted_as_a_formatter_would() -> None:
    """Short lines stay as they are; so the file can be kept."""
    text = module_text(
        parse_crontab("# why\n@daily a%b\n", file="shop").entries, ["LANG"]
    )
    assert text.split("jobs = [\n")[1] == (
        "    # shop:2\n"
        "    # why\n"
        "    CommandJob(\n"
        f'        name="{parse_crontab("@daily a%b").entries[0].name}",\n'
        '        schedule=Cron("@daily", tz="UTC", day_rule="vixie"),\n'
        '        command="a",\n'
        '        cwd="~",\n'
        '        inherit_env=["LANG"],\n'
        '        stdin="b\\n",\n'
        "    ),\n"
        "]\n"
        "\n"
        "registry = JobRegistry(jobs=jobs)\n"
    )


def test_import_writes_a_new_file(good: Path, tmp_path: Path, capsys: Capture) -> None:
    """It never overwrites one."""
    words = ["crontab", str(good), "-o", "jobs.py"]
    assert status(words) == exits.OK
    written = (tmp_path / "jobs.py").read_text()
    assert status(words) == exits.FAILED
    assert "jobs.py exists already" in capsys.readouterr().err
    assert (tmp_path / "jobs.py").read_text() == written


def test_import_is_all_or_nothing(bad: Path, tmp_path: Path, capsys: Capture) -> None:
    """A line that cannot run keeps the module from being made, unless it may be left out."""
    assert status(["crontab", "-o", "-", str(bad)]) == exits.FAILED
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(" ")[0] for line in err.splitlines()] == [
        f"{bad}:2:",
        f"{bad}:4:",
        "error:",
    ]
    assert status(["crontab", "-o", "-", "--skip-bad-lines", str(bad)]) == exits.OK
    assert capsys.readouterr().out.count("CommandJob(\n") == 1
    assert (
        status(["crontab", "-o", "-", str(write(tmp_path / "empty", "# nothing\n"))])
        == exits.FAILED
    )
    assert "no line to write" in capsys.readouterr().err


# -- the worker's choice --------------------------------------------------------------------------


def test_a_worker_runs_all_lines_or_none(bad: Path, capsys: Capture) -> None:
    """All errors are shown at once; the others run only if that is asked for."""
    with pytest.raises(
        InvalidCrontab,
        match=r"^2 problems in .*bad; fix them, or pass --skip-bad-lines$",
    ):
        CrontabChoice(files=(str(bad),)).jobs()
    assert [line.split(" ")[0] for line in capsys.readouterr().err.splitlines()] == [
        f"{bad}:2:",
        f"{bad}:4:",
    ]
    assert [
        job.command.command
        for job in CrontabChoice(files=(str(bad),), skip_bad_lines=True).jobs()
    ] == ["/bin/b"]


def test_a_file_that_is_not_there_is_never_passed_over(
    good: Path, tmp_path: Path
) -> None:
    """A volume that was not mounted must not look like a crontab without lines."""
    with pytest.raises(InvalidCrontab, match=r"^1 problem in .*none; fix it$"):
        CrontabChoice(
            files=(str(good), str(tmp_path / "none")), skip_bad_lines=True
        ).jobs()


def test_a_worker_needs_the_users_of_its_lines(tmp_path: Path) -> None:
    """What is a warning to a check elsewhere is an error where the lines are to run."""
    me = pwd.getpwuid(os.geteuid()).pw_name
    file = write(
        tmp_path / "crontab", f"CRON_TZ=UTC\n@daily no-such-user a\n@daily {me} b\n"
    )
    choice = CrontabChoice(files=(str(file),), format="system")
    with pytest.raises(InvalidCrontab):
        choice.jobs()
    skipping = CrontabChoice(files=(str(file),), format="system", skip_bad_lines=True)
    assert [job.command.command for job in skipping.jobs()] == ["b"]


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "A=1\n"], ids=["empty", "comment", "variable"]
)
def test_a_crontab_without_lines_is_refused(text: str, tmp_path: Path) -> None:
    """A worker with nothing to do is a mistake."""
    file = write(tmp_path / "crontab", text)
    with pytest.raises(InvalidCrontab, match=f"there is no line to run in {file}"):
        CrontabChoice(files=(str(file),)).jobs()


def test_a_choice_is_handed_on_whole() -> None:
    """The children of a worker with several processes read the same files in the same way."""
    choice = CrontabChoice(
        files=("a,b", "-c"),
        format="system",
        tz="Europe/Vienna",
        env=("A", "B"),
        skip_bad_lines=True,
    )
    assert list(choice.flags()) == [
        "--crontab=a,b",
        "--crontab=-c",
        "--crontab-env=A",
        "--crontab-env=B",
        "--crontab-tz=Europe/Vienna",
        "--crontab-format=system",
        "--skip-bad-lines",
    ]
    assert list(CrontabChoice().flags()) == ["--crontab-format=auto"]


def test_no_worker_reads_the_standard_input() -> None:
    with pytest.raises(InvalidCrontab, match="name a file"):
        CrontabChoice(files=("-",)).jobs()
