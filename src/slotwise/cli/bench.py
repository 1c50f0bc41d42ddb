"""``slotwise bench``: how fast it is here, beside the raw limit and whoever else is installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from slotwise.cli.command import Command
from slotwise.cli.options import Given, common, pass_given
from slotwise.cli.output import print_json_object, print_table

if TYPE_CHECKING:
    from collections.abc import Collection

    from slotwise.bench.report import Report


@click.command(
    cls=Command,
    short_help="Measure speed and cost, on a database of its own.",
    notes="""
    0    measured; targets may be reached or not
    1    something ran twice or not at all, or could not be started
    3    the database cannot be used
    """,
    examples="""
    slotwise bench                                               all cells, some 20 minutes
    slotwise bench --cells backlog,slots --rounds 5
    slotwise bench --cells backlog --scale 0.02 --rounds 1       does it work at all?
    slotwise bench --against pgqueuer,procrastinate,apscheduler  peers, where they are installed
    slotwise bench --json > result.json
    """,
)
@click.option("--cells", default="", metavar="NAMES", help="What is measured, commas between; default: everything.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="How often each takes its turn.")
@click.option(
    "--scale", type=click.FloatRange(0, 100, min_open=True), default=1.0, show_default=True,
    help="Times as many rows; below 1 for a short run.",
)  # fmt: skip
@click.option(
    "--against", default="", metavar="NAMES", help="Peers that take part; pip install 'slotwise[bench-peers]'."
)
@click.option("--markdown", is_flag=True, help="Write the tables of a page.")
@click.option(
    "--plot", "pictures", type=click.Path(file_okay=False, path_type=Path), help="Draw SVG and PNG files in here."
)
@click.option("--list", "listing", is_flag=True, help="Name the cells, and measure nothing.")
@common
@pass_given
def bench(
    given: Given, cells: str, rounds: int, scale: float, against: str, markdown: bool, pictures: Path | None,
    listing: bool,
) -> None:  # fmt: skip
    """Measure slotwise on this machine, with real workers, beside bare psycopg doing the same.

    Starts a durable PostgreSQL of its own, or makes and drops databases of its own on the server of --database-url;
    DATABASE_URL is not looked at. Contenders take turns; every id is checked to have run exactly once. --plot draws
    rates and distributions. For PNG: pip install 'slotwise[plot]'.
    """
    from slotwise.bench import peers, session  # late: no other command, and no worker, needs it

    if listing:
        print_table(["CELL", "MEASURES"], session.cells())
        return
    _refuse_unknown("--cells", cells, [name for name, _ in session.cells()])
    _refuse_unknown("--against", against, peers.KNOWN)
    wish = session.Wish(
        cells=cells, rounds=rounds, scale=scale, against=against, database_url=given.values.get("database_url"),
        pictures=pictures,
    )  # fmt: skip
    report = session.fulfil(wish, lambda line: click.echo(line, err=True))
    if given.json:
        print_json_object(report.json())
    elif markdown:
        click.echo("\n".join(report.markdown()), nl=False)
    else:
        _print(report)


def _refuse_unknown(option: str, text: str, known: Collection[str]) -> None:
    if unknown := [name for part in text.split(",") if (name := part.strip()) and name not in known]:
        raise click.UsageError(f"{option} {unknown[0]}: known are {', '.join(known)}")


def _print(report: Report) -> None:
    for cell in report.cells:
        click.echo(f"\n{cell}: {report.title(cell)}")
        columns, rows = report.rows(cell)
        print_table(["CONTENDER", *columns[1:]], rows)
    click.echo("\ntargets")
    print_table(["CELL", "FIGURE", "TARGET", "MEASURED", "SHARE", ""], report.targets())
