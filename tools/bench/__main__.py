"""``python3 dev.py bench``: measure speed and cost here, beside the raw limit, other libraries, or
another version of slotwise.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import click
from click.core import ParameterSource

from slotwise import SlotwiseError
from tools.bench import comparison, session
from tools.bench import peers as libraries
from tools.bench.comparison import Comparison
from tools.bench.report import Report

EXAMPLES = """\b
Examples:
  python3 dev.py bench                                   all cells, some 20 minutes
  python3 dev.py bench --cells backlog,slots --rounds 5
  python3 dev.py bench --cells backlog --scale 0.02 --rounds 1    does it work at all?
  python3 dev.py bench --peers pgqueuer,procrastinate,apscheduler
  python3 dev.py bench --against ../before/.venv/bin/python
  python3 dev.py bench --cells latency --against ../before/.venv/bin/python --pairs 5
  python3 dev.py bench --json > result.json
"""


@click.command(
    epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]}
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
    help="Other libraries that take part; pip install -e '.[bench-peers]'.",
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
@click.option(
    "--database-url",
    metavar="URL",
    help="Server on which to make databases; default: one is started.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.pass_context
def bench(
    context: click.Context,
    cells: str,
    rounds: int,
    scale: float,
    peers: str,
    against: str | None,
    pairs: int,
    markdown: bool,
    pictures: Path | None,
    listing: bool,
    database_url: str | None,
    as_json: bool,
) -> None:
    """Measure slotwise on this machine, with real workers, beside bare psycopg doing the same.

    Starts a durable PostgreSQL of its own, or makes and drops databases of its own on the server
    of --database-url. Contenders take turns; every id is checked to have run exactly once. --plot
    draws rates and distributions.

    With --against, this version and the other measure the same cells in turns; what counts is the
    ratio of their figures within each pair.
    """
    if listing:
        print_table(["CELL", "MEASURES"], session.cells())
        return
    if (
        not cells.strip(" ,")
        and context.get_parameter_source("cells") is ParameterSource.COMMANDLINE
    ):
        raise click.UsageError("--cells: no cell is named; see: --list")
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
            database_url=database_url,
            pictures=pictures,
        )
        found = session.fulfil(wish, _progress)
    else:
        pairing = comparison.Pairing(
            against=against,
            cells=cells,
            pairs=pairs,
            scale=scale,
            database_url=database_url,
        )
        found = comparison.compare(pairing, _progress)
    if as_json:
        click.echo(json.dumps(found.json(), indent=2, ensure_ascii=False, default=str))
    elif markdown:
        click.echo("\n".join(found.markdown()))
    elif isinstance(found, comparison.Comparison):
        _print_comparison(found)
    else:
        _print(found)


def _refuse_unknown(option: str, text: str, known: Collection[str]) -> None:
    if unknown := [
        name
        for part in text.split(",")
        if (name := part.strip()) and name not in known
    ]:
        raise click.UsageError(f"{option} {unknown[0]}: known are {', '.join(known)}")


def _refuse_together(context: click.Context, against: str | None) -> None:
    """Reject options of the other kind of run; each would be ignored otherwise."""
    others = ["pairs"] if against is None else ["rounds", "peers", "pictures"]
    for option in context.command.params:
        if (
            option.name in others
            and context.get_parameter_source(option.name)
            is ParameterSource.COMMANDLINE
        ):
            reason = (
                "it needs --against"
                if against is None
                else "it cannot be used with --against"
            )
            raise click.UsageError(f"{option.opts[0]}: {reason}")


def _progress(line: str) -> None:
    click.echo(line, err=True)


def _print(report: Report) -> None:
    for cell in report.cells:
        click.echo(f"\n{cell}: {report.title(cell)}")
        columns, rows = report.rows(cell)
        print_table(["CONTENDER", *columns[1:]], rows)
    click.echo("\ntargets")
    print_table(
        ["CELL", "FIGURE", "TARGET", "MEASURED", "SHARE", ""], report.targets()
    )


def _print_comparison(found: Comparison) -> None:
    """Both versions, and the ratios; the raw limit is the same code in both, so its ratios are the
    machine's noise.
    """
    click.echo(f"\nthis   {found.machine['this']}\nother  {found.machine['other']}\n")
    print_table(
        [column.upper() for column in found.columns],
        [line.row() for line in found.lines],
    )
    for note in found.notes:
        click.echo(note)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with its columns aligned."""
    lines = [columns, *rows]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        click.echo("  ".join(cells).rstrip())


def main() -> None:
    """Exit with 1 where something ran twice, not at all, or could not be started."""
    try:
        bench()
    except SlotwiseError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
