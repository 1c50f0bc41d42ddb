"""Two installed versions are compared in pairs; an interpreter that cannot take part is refused in
one line.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import venv
from contextlib import suppress
from pathlib import Path

import click
import psycopg
import pytest

import slotwise
from slotwise import ConfigurationError
from slotwise.embedded import EmbeddedPostgres, GivenPostgres
from slotwise.spi import elapsed
from tools.bench.__main__ import bench
from tools.bench.comparison import Comparison, Installation, Line
from tools.bench.crew import ROOT
from tools.bench.journal import RanWrong
from tools.bench.server import Server

SOURCE = Path(slotwise.__file__).parents[1]
LIBRARIES = Path(click.__file__).parents[1]

#: A version of slotwise whose benchmark measures one cell, and breaks there.
BROKEN = """
import sys
arguments = sys.argv[1:]
if arguments == ["--list"]:
    print("CELL  MEASURES\\nlong  tasks of a second")
elif arguments == "--cells long --rounds 1 --scale 0.5 --database-url postgresql://here --json".split():
    sys.exit("Error: long: of 20 ids 1 did not start")
else:
    sys.exit(f"not the agreed options: {arguments}")
"""


def interpreter(folder: Path, *paths: Path | str) -> str:
    """The Python of a virtual environment that imports from these folders, and runs such lines as
    it starts.
    """
    venv.create(folder, symlinks=True)
    library = next((folder / "lib").glob("python*/site-packages"))
    (library / "paths.pth").write_text("".join(f"{path}\n" for path in paths))
    return str(folder / "bin" / "python")


def broken(folder: Path) -> str:
    """The Python of an environment with that other version."""
    package = folder / "src" / "slotwise"
    metadata = folder / "src" / "slotwise-0.0.1.dist-info"
    benchmark = folder / "tools" / "bench"
    for path in (package, metadata, benchmark):
        path.mkdir(parents=True)
    (package / "__init__.py").touch()
    (benchmark / "__main__.py").write_text(BROKEN)
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: slotwise\nVersion: 0.0.1\n"
    )
    return interpreter(folder / "environment", folder / "src")


@pytest.mark.extended
@pytest.mark.timeout(300)
def test_this_version_is_compared_with_itself(
    capsys: pytest.CaptureFixture[str],
    postgres: EmbeddedPostgres | GivenPostgres,
    tmp_path: Path,
) -> None:
    """Both sides are measured in each pair, in changing order, and each ratio is this figure by
    the other's.
    """
    rounds = tmp_path / "rounds"
    noting = (
        f"import os, sys; 'enqueue' in sys.orig_argv and open({str(rounds)!r}, "
        f"'a').write(f'{{os.getpid()}} ')"
    )
    other = interpreter(tmp_path / "other", SOURCE, LIBRARIES, noting)
    options = [
        "--cells",
        "enqueue",
        "--scale",
        "0.004",
        "--database-url",
        postgres.dsn,
        "--json",
    ]
    bench.main([*options, "--against", other, "--pairs", "2"], standalone_mode=False)
    written = capsys.readouterr()
    found = json.loads(written.out)
    rates = {
        one["contender"]: one for one in found["comparison"] if one["figure"] == "rate"
    }
    assert {"raw-copy-1000", "slotwise-many-unnest", "slotwise-schedule"} < set(rates)
    for one in rates.values():
        ratios = [
            this / other for this, other in zip(one["this"], one["other"], strict=True)
        ]
        assert (one["pairs"], one["min"], one["max"]) == (2, min(ratios), max(ratios))
        assert one["median"] == pytest.approx(sum(ratios) / 2)
    assert all(str(SOURCE) in found["machine"][side] for side in ("this", "other"))
    assert len(set(rounds.read_text().split())) == 2
    begun = [line for line in written.err.splitlines() if line.endswith("…")]
    assert begun == [
        "pair 1 of 2, enqueue: this version first …",
        "pair 2 of 2, enqueue: the other version first …",
    ]


# -- interpreters that cannot take part -----------------------------------------------------------


def test_a_program_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    """The message names the option and the path."""
    with pytest.raises(
        ConfigurationError,
        match=f"^--against {tmp_path}/python: no such program; [^\n]*$",
    ):
        Installation.find(f"{tmp_path}/python")


def test_a_program_that_is_not_python_is_refused() -> None:
    """It starts, and does not answer."""
    program = shutil.which("true")
    with pytest.raises(
        ConfigurationError,
        match=f"^--against {program}: it is not a Python interpreter$",
    ):
        Installation.find(str(program))


def test_an_interpreter_without_slotwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where PYTHONPATH would lend it this version: the comparison would be with itself."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SOURCE), str(LIBRARIES)]))
    python = interpreter(tmp_path)
    with pytest.raises(
        ConfigurationError,
        match=f"slotwise is not installed there; run: {python} -m pip install",
    ):
        Installation.find(python)


@pytest.mark.extended
def test_a_cell_that_the_other_version_lacks_is_refused(tmp_path: Path) -> None:
    """Before anything is measured, with the cells that it has."""
    python = broken(tmp_path)
    with pytest.raises(
        ConfigurationError,
        match=r"^--cells backlog: slotwise 0\.0\.1 of .* it measures long$",
    ):
        bench.main(
            ["--against", python, "--cells", "long,backlog"], standalone_mode=False
        )


@pytest.mark.extended
def test_a_round_that_fails_ends_the_comparison(tmp_path: Path) -> None:
    """The last line of the other version says why; it was started with the options that all
    versions share.
    """
    found = Installation.find(broken(tmp_path))
    with pytest.raises(
        RanWrong,
        match=r"^long with .* \(slotwise 0\.0\.1\): long: of 20 ids 1 did not start$",
    ):
        found.measure("long", 0.5, "postgresql://here")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--pairs", "3"], "--pairs: it needs --against"),
        (
            ["--against", "python", "--rounds", "3"],
            "--rounds: it cannot be used with --against",
        ),
        (
            ["--against", "python", "--plot", "pictures"],
            "--plot: it cannot be used with --against",
        ),
    ],
    ids=["pairs", "rounds", "plot"],
)
def test_options_of_the_other_kind_of_run_are_refused(
    arguments: list[str], complaint: str
) -> None:
    """Such an option would be ignored otherwise."""
    with pytest.raises(click.UsageError, match=complaint):
        bench.main(arguments, standalone_mode=False)


# -- the end of a comparison ----------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.timeout(180)
@pytest.mark.skipif(
    not Path("/proc/self/environ").exists(),
    reason="processes are found by their environment",
)
def test_a_comparison_that_is_stopped_leaves_nothing_behind(tmp_path: Path) -> None:
    """SIGTERM stops the round under way, with its worker and its databases."""
    command = [
        sys.executable,
        "-m",
        "tools.bench",
        "--cells",
        "long",
        "--against",
        sys.executable,
    ]
    with Server() as server, (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(
            [*command, "--database-url", server.dsn],
            cwd=ROOT,
            stdout=output,
            stderr=output,
            process_group=0,
        )
        try:
            end = elapsed() + 60
            while not _workers(server.dsn):
                assert process.poll() is None, "the comparison ended by itself"
                assert elapsed() < end, "no worker was started"
            process.terminate()
            status = process.wait(60)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
        with psycopg.connect(server.dsn) as connection:
            left = [
                row[0]
                for row in connection.execute(
                    "SELECT datname FROM pg_database WHERE datname ~ 'bench'"
                )
            ]
        assert (status != 0, left, _workers(server.dsn)) == (True, [], [])


def _workers(dsn: str) -> list[int]:
    """The processes of workers whose database is on this server."""
    wanted, found = f"SLOTWISE_DATABASE_URL={dsn.rpartition('/')[0]}/".encode(), []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and wanted in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


# -- reading the results --------------------------------------------------------------------------


def test_figures_of_one_version_only_are_named() -> None:
    """A contender or a figure that one side lacks has no ratio; the contender is named in a
    note.
    """
    comparison = Comparison(
        command="python3 dev.py bench", machine={"this": "1", "other": "2"}
    )
    comparison.add(
        "backlog",
        {"slotwise": {"rate": 50.0, "new_ms": 1.0}, "slotwise-new": {"rate": 1.0}},
        {"slotwise": {"rate": 100.0}},
    )
    assert [line.row() for line in comparison.lines] == [
        ["backlog", "slotwise", "rate", "50.0", "100", "0.500", "0.500", "0.500", "1"]
    ]
    assert list(comparison.notes) == [
        "backlog, slotwise-new: figures of this version only"
    ]
    page = "\n".join(comparison.markdown())
    assert (
        "| backlog | slotwise | rate | 50.0 | 100 | 0.500 | 0.500 | 0.500 | 1 |"
        in page
    )


def test_ratios_are_taken_within_a_pair() -> None:
    """A machine that was slow in one pair changes no ratio; a pair in which the other measured
    zero has none.
    """
    line = Line(
        cell="backlog",
        contender="slotwise",
        figure="rate",
        this=(50.0, 6.0, 9.0),
        other=(100.0, 10.0, 0.0),
    )
    assert line.ratios == [0.5, 0.6]
    assert line.row()[-4:] == ["0.550", "0.500", "0.600", "2"]
