"""``slotwise bench``: measure speed and cost here, beside the raw limit, other libraries, or
another version.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from slotwise.cli.shared.options import Command, Given, common, pass_given
from slotwise.cli.shared.output import print_json, print_table
from slotwise.cli.shared.terminal import say, say_document

if TYPE_CHECKING:
    from collections.abc import Collection

    from slotwise.bench.comparison import Comparison
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
    slotwise bench                                             all cells, some 20 minutes
    slotwise bench --cells backlog,slots --rounds 5
    slotwise bench --cells backlog --scale 0.02 --rounds 1     does it work at all?
    slotwise bench --peers pgqueuer,procrastinate,apscheduler  other libraries, where they are installed
    slotwise bench --against ../before/.venv/bin/python        backlog and slots, in pairs with another version
    slotwise bench --cells latency --against ../before/.venv/bin/python --pairs 5
    slotwise bench --json > result.json
    """,
)
@click.option(
    "--cells",
    default="",
    metavar="NAMES",
    help="Cells to measure, separated by commas; default: all, with --against backlog,slots.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 10_000),
    default=5,
    show_default=True,
    help="How many rounds to run.",
)
@click.option(
    "--scale",
    type=click.FloatRange(0, 100, min_open=True),
    default=1.0,
    show_default=True,
    help="Times as many rows; below 1 for a short run.",
)
@click.option(
    "--peers",
    default="",
    metavar="NAMES",
    help="Other libraries that take part; pip install 'slotwise[bench-peers]'.",
)
@click.option(
    "--against",
    metavar="PYTHON",
    help="Compare with the slotwise that is installed for this other interpreter.",
)
@click.option(
    "--pairs",
    type=click.IntRange(1, 10_000),
    default=15,
    show_default=True,
    help="With --against: how many rounds of both versions, one right after the other.",
)
@click.option("--markdown", is_flag=True, help="Print the tables in Markdown.")
@click.option(
    "--plot",
    "pictures",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for pictures, SVG and PNG.",
)
@click.option(
    "--list", "listing", is_flag=True, help="List the cells, and measure nothing."
)
@common
@pass_given
@click.pass_context
def bench(
    context: click.Context,
    given: Given,
    cells: str,
    rounds: int,
    scale: float,
    peers: str,
    against: str | None,
    pairs: int,
    markdown: bool,
    pictures: Path | None,
    listing: bool,
) -> None:
    """Measure slotwise on this machine, with real workers, beside bare psycopg doing the same.

    Starts a durable PostgreSQL of its own, or makes and drops databases of its own on the server
    of --database-url; DATABASE_URL is not read. Contenders take turns; every id is checked to have
    run exactly once. --plot draws rates and distributions. For PNG: pip install 'slotwise[plot]'.

    With --against, this version and the other measure the same cells in turns; what counts is the
    ratio of their figures within each pair.
    """
    from slotwise.bench import (
        comparison,
        session,
    )  # late: no other command, and no worker, needs the benchmark
    from slotwise.bench import peers as libraries

    if listing:
        print_table(["CELL", "MEASURES"], session.cells())
        return
    if (
        not cells.strip(" ,")
        and context.get_parameter_source("cells") is ParameterSource.COMMANDLINE
    ):
        raise click.UsageError("--cells: no cell is named; see: slotwise bench --list")
    _refuse_unknown("--cells", cells, [name for name, _ in session.cells()])
    _refuse_unknown("--peers", peers, libraries.KNOWN)
    _refuse_together(context, against)
    found: Comparison | Report
    if against is None:
        wish = session.Wish(
            cells=cells,
            rounds=rounds,
            scale=scale,
            peers=peers,
            database_url=given.text("database_url"),
            pictures=pictures,
        )
        found = session.fulfil(wish, _progress)
    else:
        pairing = comparison.Pairing(
            against=against,
            cells=cells,
            pairs=pairs,
            scale=scale,
            database_url=given.text("database_url"),
        )
        found = comparison.compare(pairing, _progress)
    if given.json:
        print_json(found.json())
    elif markdown:
        say_document("".join(f"{block}\n" for block in found.markdown()))
    elif isinstance(found, comparison.Comparison):
        _print_comparison(found)
    else:
        _print(found)


def _refuse_unknown(option: str, text: str, known: Collection[str]) -> None:
    if unknown := [
        name for part in text.split(",") if (name := part.strip()) and name not in known
    ]:
        raise click.UsageError(f"{option} {unknown[0]}: known are {', '.join(known)}")


def _refuse_together(context: click.Context, against: str | None) -> None:
    """Reject options of the other kind of run; each would be ignored otherwise."""
    others = ["pairs"] if against is None else ["rounds", "peers", "pictures"]
    for option in context.command.params:
        if (
            option.name in others
            and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
        ):
            reason = (
                "it needs --against"
                if against is None
                else "it cannot be used with --against"
            )
            raise click.UsageError(f"{option.opts[0]}: {reason}")


def _progress(line: str) -> None:
    say(line, err=True)


def _print(report: Report) -> None:
    for cell in report.cells:
        say("", f"{cell}: {report.title(cell)}")
        columns, rows = report.rows(cell)
        print_table(["CONTENDER", *columns[1:]], rows)
    say("", "targets")
    print_table(["CELL", "FIGURE", "TARGET", "MEASURED", "SHARE", ""], report.targets())


def _print_comparison(found: Comparison) -> None:
    """Both versions, and the ratios; the raw limit is the same code in both, so its ratios are the
    machine's noise.
    """
    say("", f"this   {found.machine['this']}", f"other  {found.machine['other']}", "")
    print_table(
        [column.upper() for column in found.columns], [line.row() for line in found.lines]
    )
    for note in found.notes:
        say(note)
