"""``slotwise bench``: how fast it is here, beside the raw limit and whoever else is installed."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from slotwise.bench import machine, peers, plot
from slotwise.bench.cells import ALL
from slotwise.bench.readings import Reading
from slotwise.bench.report import Report, number
from slotwise.bench.run import Run, measure
from slotwise.bench.server import Server
from slotwise.cli.command import Command
from slotwise.cli.options import Given, common, pass_given
from slotwise.cli.output import print_json_object, print_table
from slotwise.errors import ConfigurationError


@click.command(
    cls=Command,
    short_help="Measure throughput, latency and cost.",
    notes="""
    0    measured; reached targets or not
    1    something ran twice or not at all, or could not be started
    3    the database cannot be used
    """,
    examples="""
    slotwise bench                                               all cells, some 40 minutes
    slotwise bench --cells backlog,slots --rounds 5
    slotwise bench --cells backlog --scale 0.02 --rounds 1       does it work at all?
    slotwise bench --against pgqueuer,procrastinate,apscheduler  peers, where they are installed
    slotwise bench --json > result.json
    """,
)
@click.option("--cells", default=",".join(ALL), metavar="NAMES", help="What is measured; default: everything.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="How often each takes its turn.")
@click.option(
    "--scale", type=click.FloatRange(0, 100, min_open=True), default=1.0, show_default=True,
    help="Times as many rows; below 1 for a short run.",
)  # fmt: skip
@click.option("--against", default="", metavar="NAMES", help=f"Peers that take part: {', '.join(peers.KNOWN)}.")
@click.option("--markdown", is_flag=True, help="Write the tables of a page.")
@click.option("--plot", "pictures", type=click.Path(file_okay=False, path_type=Path), help="Draw SVG files in here.")
@click.option("--list", "listing", is_flag=True, help="Name the cells, and measure nothing.")
@common
@pass_given
def bench(
    given: Given, cells: str, rounds: int, scale: float, against: str, markdown: bool, pictures: Path | None,
    listing: bool,
) -> None:  # fmt: skip
    """Measure slotwise on this machine, with real workers, beside bare psycopg doing the same.

    Starts a durable PostgreSQL of its own, or makes and drops databases of its own on the server of --database-url;
    DATABASE_URL is not looked at. Contenders take turns; every id is checked to have run exactly once.
    """
    if listing:
        print_table(["CELL", "MEASURES"], [[cell.name, cell.title] for cell in ALL.values()])
        return
    chosen = [ALL[name] for name in _known(_split(cells))]
    found, versions = peers.find(_split(against))
    with _ended_cleanly(), Server(given.values.get("database_url")) as server:
        facts = machine.describe(server, versions)
        run = Run(server=server, rounds=rounds, scale=scale, peers=found, tell=_tell)
        readings = measure(run, chosen)
    report = Report(
        readings=readings, machine=facts, command=_command(cells, rounds, scale, against), is_whole=scale >= 1
    )
    if pictures is not None:
        plot.draw(readings, pictures)
    if given.json:
        print_json_object(report.json())
    elif markdown:
        click.echo("\n".join(report.markdown()), nl=False)
    else:
        _print(report)


@contextmanager
def _ended_cleanly() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does: workers, databases and the server are cleared away."""
    former = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def _split(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip())]


def _known(names: Iterable[str]) -> list[str]:
    names = list(names)
    for name in names:
        if name not in ALL:
            raise ConfigurationError(f"--cells {name}: known are {', '.join(ALL)}")
    return names


def _command(cells: str, rounds: int, scale: float, against: str) -> str:
    """How to run the same again."""
    words = ["slotwise bench", f"--rounds {rounds}", f"--scale {scale:g}"]
    words += [f"--cells {cells}"] if cells != ",".join(ALL) else []
    words += [f"--against {against}"] if against else []
    return " ".join(words)


def _tell(reading: Reading) -> None:
    """Progress, on stderr."""
    figures = "  ".join(f"{name}={number(value)}" for name, value in reading.figures.items())
    click.echo(f"{reading.cell:<12} {reading.contender:<34} {reading.round}  {figures or reading.note}", err=True)


def _print(report: Report) -> None:
    for cell in report.cells:
        click.echo(f"\n{cell}: {ALL[cell].title}")
        columns, rows = report.rows(cell)
        print_table(["CONTENDER", *columns[1:]], rows)
    click.echo(f"\ntargets{'' if report.is_whole else ' (a short run: rates and shares mean little)'}")
    print_table(["CELL", "FIGURE", "TARGET", "MEASURED", "SHARE", ""], report.targets())
