"""``slotwise statement``: what was expected in a month, and what became of it."""

from __future__ import annotations

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import click

from slotwise.cli.shared import exits
from slotwise.cli.shared.options import Command, Given, common, pass_given
from slotwise.cli.shared.output import print_json, print_table
from slotwise.cli.shared.terminal import moment, say, shown
from slotwise.contrib.statement import Statement, statement
from slotwise.contrib.statement.formats import COLUMNS, as_csv, as_page, name_of, rows
from slotwise.contrib.wording import counted
from slotwise.spi import KNOWN_YEARS, PluginCommand, Section, is_known


@click.command(
    "statement",
    cls=Command,
    short_help="Account for each slot of a month, by job and in total.",
    notes="""
    0  everything that was expected is explained
    1  some slots are not; the first of them are listed; or there is no such job
    """,
    examples="""
    slotwise statement 2026-11
    slotwise statement 2026-11 nightly-report --tz Europe/Vienna
    slotwise statement 2026-11 --csv > november.csv
    slotwise statement 2026-11 --html > november.html     # print it from a browser
    """,
)
@click.argument("month", metavar="YYYY-MM")
@click.argument("name", required=False)
@click.option("--csv", "csv", is_flag=True, help="Print comma-separated values.")
@click.option("--html", "html", is_flag=True, help="Print a page for a browser.")
@common
@pass_given
def command(given: Given, month: str, name: str | None, csv: bool, html: bool) -> int:
    """Compare the slots of all schedules that the jobs had in a month with what the ledger has:
    expected = ran + late + skipped + failed + open, and nothing else.

    A month that is not over ends now. Months are of UTC, or of the zone given with --tz. Pruned
    slots are explained by the hourly counts of what was pruned.
    """
    start, end = _month(month, shown(ZoneInfo("UTC")))
    with given.inspection(import_app=False) as inspect:
        now = inspect.health().now
        found = statement(inspect, start, end, now=now, job=name)
        if name is not None and not found.jobs:
            inspect.check_name(name)
    if given.json:
        print_json(found)
    elif csv:
        _print(as_csv(found))
    elif html:
        _print(as_page(found, _title(month, name)))
    else:
        _tell(found)
    return exits.FAILED if found.total.unexplained else exits.OK


def _title(month: str, name: str | None) -> str:
    return f"Statement of {month}, {name}" if name else f"Statement of {month}"


def _print(text: str) -> None:
    for line in text.splitlines():
        say(line)


def _tell(found: Statement) -> None:
    print_table(COLUMNS, rows(found), spare=("BESIDE", "OPEN"), folds="JOB")
    for one in found.jobs:
        for slot in one.first_unexplained:
            say(f"not explained: {name_of(one)} {moment(slot)}", err=True)
    if found.total.pruned:
        say(
            f"note: {counted(found.total.pruned, 'slot', 'was', 'were')} pruned; the hourly counts "
            "have what was pruned",
            err=True,
        )


def _month(text: str, zone: ZoneInfo) -> tuple[datetime, datetime]:
    try:
        first = date.fromisoformat(f"{text}-01")
        years, month = divmod(first.month, 12)
        following = date(first.year + years, month + 1, 1)
        start, end = (
            datetime(day.year, day.month, 1, tzinfo=zone).astimezone(UTC)
            for day in (first, following)
        )
    except (ValueError, OverflowError):
        is_good = False
    else:
        is_good = is_known(start) and is_known(end)
    if not is_good:
        raise click.UsageError(
            f"{text!r:.60}: write a year and a month, as 2026-11, in {KNOWN_YEARS}"
        )
    return start, end


STATEMENT = PluginCommand(command=command, section=Section.SEE)
