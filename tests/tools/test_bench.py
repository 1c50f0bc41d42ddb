"""The benchmark works, and what it measured ran exactly once. Nothing here looks at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import psycopg
import pytest

from slotwise.embedded import EmbeddedPostgres, GivenPostgres
from tools.bench import peers
from tools.bench.__main__ import bench
from tools.bench.cells import ALL
from tools.bench.cells.throughput import drain
from tools.bench.crew import Command
from tools.bench.journal import Journal, RanWrong, expect_once
from tools.bench.pictures import draw
from tools.bench.raw import Raw
from tools.bench.readings import Reading, Readings, ratio
from tools.bench.report import Report, judge
from tools.bench.run import Run, python
from tools.bench.server import Server

#: Together they take longer than a test may.
PARTS = {
    "quick": (
        "backlog",
        "slots",
        "enqueue",
        "nothing-due",
        "blocked",
        "fairness",
        "memory",
        "pages",
        "held",
        "locks",
    ),
    "longer": ("next-due", "two-workers", "snapshot", "idle", "payloads", "long"),
    "late": ("metrics", "marks", "ids", "seconds", "return"),
    "waiting": ("latency", "punctuality"),
}


def run_bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """``python3 dev.py bench … --json``, very short; what it wrote."""
    bench.main(
        ["--scale", "0.004", "--rounds", "1", "--json", *arguments],
        standalone_mode=False,
    )
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.extended
@pytest.mark.timeout(300)
@pytest.mark.parametrize("cells", PARTS.values(), ids=PARTS)
def test_every_cell_works_and_every_id_ran_once(
    cells: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    postgres: EmbeddedPostgres | GivenPostgres,
    tmp_path: Path,
) -> None:
    """Each cell gives a reading; whatever was filled in was checked; pictures are well formed."""
    found = run_bench(
        capsys,
        "--cells",
        ",".join(cells),
        "--database-url",
        postgres.dsn,
        "--plot",
        str(tmp_path / "pictures"),
    )
    assert {one["cell"] for one in found["readings"]} == set(cells)
    checked = {
        (one["cell"], one["contender"]): one.get("checked", 0)
        for one in found["readings"]
    }
    wanted = {
        "backlog": 200,
        "two-workers": 200,
        "slots": 100,
        "latency": 6,
        "payloads": 20,
        "long": 20,
    }
    assert {
        key: count
        for key, count in checked.items()
        if key[0] in wanted and count != wanted[key[0]]
    } == {}
    assert {one["cell"] for one in found["targets"]} <= set(cells)
    for picture in (tmp_path / "pictures").glob("*.svg"):
        ElementTree.parse(picture)


def test_cells_are_all_run_by_a_test() -> None:
    """No cell is forgotten above."""
    assert {name for cells in PARTS.values() for name in cells} == set(ALL)


@pytest.mark.extended
def test_its_own_server_is_durable_and_gone_afterwards() -> None:
    """Without an address it starts a PostgreSQL that flushes, and leaves nothing of it."""
    with Server() as server:
        assert (server.facts["fsync"], server.facts["synchronous_commit"]) == (
            "on",
            "on",
        )
        assert server.cpu() is None or server.cpu() > 0  # type: ignore[operator]
        reading = drain(Run(server=server), "backlog", Raw(100), 1, 400)
        home = server.home
    assert reading.checked == 400
    assert home is not None
    assert not home.exists()


@pytest.mark.extended
@pytest.mark.parametrize("name", sorted(peers.KNOWN))
def test_peers_run_each_id_once(name: str) -> None:
    """An adapter fills, runs and empties its peer, where that is installed."""
    for module in peers.KNOWN[name][0]:
        pytest.importorskip(module)
    contenders, _ = peers.find([name])
    with Server() as server:
        for contender in contenders:
            count = round(400 / contender.share)
            assert (
                drain(Run(server=server), "backlog", contender, 1, count).checked
                == 400
            )


@pytest.mark.parametrize(
    ("option", "names"),
    [("--cells", "backlog"), ("--peers", "pgqueuer")],
    ids=["cells", "peers"],
)
def test_unknown_names_are_refused(option: str, names: str) -> None:
    """A wrong name is one line that lists the right ones."""
    with pytest.raises(
        click.UsageError, match=f"{option} nonsense: known are .*{names}"
    ):
        bench.main([option, "nonsense"], standalone_mode=False)


# -- what makes a run worthless -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "complaint"),
    [
        ([1, 2, 3, 2], "1 started more than once"),
        ([1, 3], "1 did not start"),
        ([1, 2, 3, 4], "1 were never scheduled"),
    ],
    ids=["twice", "missing", "foreign"],
)
def test_a_wrong_run_is_refused(
    ids: list[int], complaint: str, tmp_path: Path
) -> None:
    """What ran twice, not at all, or out of nowhere ends the benchmark."""
    journal = Journal(tmp_path / "journal", 10)
    for number in ids:
        journal.note(number)
    with pytest.raises(RanWrong, match=complaint):
        expect_once([journal], range(1, 4), "somebody")


class Twice(Raw):
    """A worker that runs each task, and one of them again."""

    def command(self, url: str) -> Command:
        found = python("tests.tools.bench_twice", url=url)
        root = str(Path(__file__).resolve().parents[2])
        return Command(
            arguments=found.arguments,
            environment={**found.environment, "PYTHONPATH": root},
        )


def test_a_worker_that_runs_a_task_twice_is_found_out(
    postgres: EmbeddedPostgres | GivenPostgres,
) -> None:
    """The check reads what the handlers wrote, whatever the database says; somebody else's server
    is left clean.
    """
    server = Server(postgres.dsn)
    with pytest.raises(RanWrong, match="1 started more than once"), server:
        drain(Run(server=server), "backlog", Twice(100), 1, 50)
    with psycopg.connect(postgres.dsn) as connection:
        left = {
            row[0] for row in connection.execute("SELECT datname FROM pg_database")
        }
    assert server.made
    assert server.made & left == set()


# -- reading the results --------------------------------------------------------------------------


def _rates(contender: str, *rates: float) -> list[Reading]:
    return [
        Reading(
            cell="backlog",
            contender=contender,
            round=number,
            figures={"rate": rate, "client_us": 20.0 + number, "server_us": 15.0},
        )
        for number, rate in enumerate(rates, 1)
    ]


def test_ratios_are_taken_within_a_round() -> None:
    """A machine that was slow for everybody in one round changes no ratio."""
    readings = Readings(
        [*_rates("slotwise", 50, 5, 60), *_rates("raw-500", 100, 10, 100)]
    )
    assert (
        ratio(readings.of("backlog", "slotwise"), readings.of("backlog", "raw-500"))
        == 0.5
    )


def test_targets_are_judged_against_the_best_of_the_others() -> None:
    """The faster raw setting is the limit; a target without figures says so; CPU is that of the
    quietest round.
    """
    readings = Readings(
        [*_rates("slotwise", 70), *_rates("raw-100", 90), *_rates("raw-500", 100)]
    )
    found = {one.target.text: one for one in judge(readings, {"backlog"})}
    limit, peer, cpu = found.values()
    assert (limit.value, limit.word) == (0.7, "reached")
    assert (peer.value, peer.word) == (None, "not measured")
    assert (cpu.value, cpu.word) == (36.0, "reached")


def test_a_short_run_is_not_judged() -> None:
    """It shows that all works; its rates are those of starting and ending."""
    readings = Readings([*_rates("slotwise", 70), *_rates("raw-100", 90)])
    report = Report(
        readings=readings,
        machine={},
        command="python3 dev.py bench --scale 0.1",
        is_whole=False,
    )
    assert [row[-1] for row in report.targets()] == [
        "not judged: a short run",
        "not measured",
        "not judged: a short run",
    ]


MEASURED = Readings(
    [
        *_rates("slotwise", 70, 90),
        *_rates("raw-500", 100),
        Reading(
            cell="latency",
            contender="slotwise ×3",
            figures={"p50_ms": 2.0},
            spread=(0.9, 2.0, 40.0),
        ),
    ]
)


def test_rates_and_distributions_are_drawn(tmp_path: Path) -> None:
    """A picture of each, as SVG that a parser reads and as PNG."""
    drawn = {path.name: path for path in draw(MEASURED, tmp_path / "pictures")}
    names = ("backlog-rate", "latency-spread")
    assert set(drawn) == {
        f"{name}.{suffix}" for name in names for suffix in ("svg", "png")
    }
    for name in names:
        ElementTree.parse(drawn[f"{name}.svg"])
        assert drawn[f"{name}.png"].read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_done_yet_is_said() -> None:
    """A reading without figures keeps its reason, in the verdict and in the page."""
    note = Reading(
        cell="enqueue",
        contender="slotwise-many-copy",
        note="not yet: no schedule_many",
    )
    readings = Readings(
        [
            Reading(cell="enqueue", contender="raw-copy-1000", figures={"rate": 1e5}),
            note,
        ]
    )
    words = {one.target.text: one.word for one in judge(readings, {"enqueue"})}
    assert words["rows per second, COPY"] == "not yet"
    page = "\n".join(
        Report(
            readings=readings, machine={"cpu": "1"}, command="python3 dev.py bench"
        ).markdown()
    )
    assert "| slotwise-many-copy | not yet: no schedule_many |" in page


def test_the_page_has_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--markdown prints tables, a row a line, which a page takes as they are."""
    report = Report(
        readings=MEASURED, machine={"cpu": "1"}, command="python3 dev.py bench"
    )
    monkeypatch.setattr("tools.bench.session.fulfil", lambda wish, tell: report)
    bench.main(["--markdown"], standalone_mode=False)
    printed = capsys.readouterr().out
    assert printed == "".join(f"{block}\n" for block in report.markdown())
    assert "\n|" in printed
    assert "\\n" not in printed
