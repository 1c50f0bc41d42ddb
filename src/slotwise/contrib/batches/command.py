"""``slotwise batches``: the rows that could not be processed, and how many rows a job has to do."""

from __future__ import annotations

import json
from typing import Final

import click

from slotwise import ConfigurationError, UnknownTask
from slotwise.contrib.batches.jobs import Walking
from slotwise.contrib.batches.set_aside import AsideRow, SetAside
from slotwise.contrib.wording import counted
from slotwise.spi import CommandLine, PluginCommand, Section, error_summary, escaped

_GROUP: Final = """\b
Examples:
  slotwise batches                                   rows that are set aside
  slotwise batches --dry-run attach-cards --app jobs     how many rows it has to do
"""
_LIST: Final = """\b
Examples:
  slotwise batches list
  slotwise batches list attach-cards --json
"""
_RETRY: Final = """\b
Examples:
  slotwise batches retry attach-cards 17 18
  slotwise batches retry attach-cards --all
"""
_DROP: Final = """\b
Examples:
  slotwise batches drop attach-cards 17
"""


@click.group(
    short_help="List rows that batches have set aside, retry or drop them.",
    invoke_without_command=True,
    epilog=_GROUP,
)
@click.option(
    "--dry-run",
    "job",
    metavar="NAME",
    help="Print how many rows this BatchJob or BatchTask of the application has to do.",
)
@click.pass_context
def batches(ctx: click.Context, job: str | None) -> None:
    """List the rows that the batches of jobs and tasks have set aside, retry or drop them."""
    if ctx.invoked_subcommand is None:
        if job is None:
            ctx.invoke(listing)
        else:
            _count(ctx.obj, job)


def _count(line: CommandLine, name: str) -> None:
    definition = line.registry().definitions.get(name)
    if definition is None:
        raise UnknownTask(f"the application has no job or task {name!r:.100}")
    walking = getattr(definition.handler, "__self__", None)
    if not isinstance(walking, Walking):
        raise ConfigurationError(
            f"{name} is neither a BatchJob nor a BatchTask, so its rows cannot be counted here; "
            "in a handler: batches(…).count()"
        )
    rows = walking.count()
    if line.json:
        click.echo(json.dumps({"name": name, "rows": rows}))
    else:
        click.echo(f"{name}: {counted(rows, 'row')} to do")


@batches.command("list", short_help="List rows that were set aside.", epilog=_LIST)
@click.argument("name", required=False)
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="How many to list at most.",
)
@click.pass_obj
def listing(line: CommandLine, name: str | None = None, limit: int = 100) -> None:
    """List rows that failed, those that failed last first: of one job or task, or of all.

    Rows in state failing are tried again by themselves.
    """
    with line.client() as client:
        rows = SetAside(client).listed(name, limit)
    if line.json:
        click.echo(json.dumps([row.as_json() for row in rows]))
        return
    for row in rows:
        click.echo(escaped(_line(row)))
    if not rows:
        click.echo("no rows are set aside")


def _line(row: AsideRow) -> str:
    source = f" ({row.source})" if row.source else ""
    when = f"{row.last_failed:%Y-%m-%d %H:%M:%SZ}"
    error = error_summary(row.error)
    return f"{row.job}{source}  {row.key}  {row.state}  {row.tries} tries  {when}  {error}"


@batches.command(
    "retry", short_help="Let rows that were set aside be tried again.", epilog=_RETRY
)
@click.argument("name")
@click.argument("keys", nargs=-1)
@click.option("--all", "all_of_them", is_flag=True, help="All that are set aside.")
@click.pass_obj
def retry(
    line: CommandLine, name: str, keys: tuple[str, ...], all_of_them: bool
) -> int:
    """Let the next run of NAME try rows again, by their KEYS as listed. Exit status 1 if there is
    none.
    """
    with line.client() as client:
        wanted = _wanted(keys, all_of_them)
        count = SetAside(client).retry(name, wanted)
    return _tell(line, name, count, "will be tried again by the next run")


@batches.command("drop", short_help="Never try rows again.", epilog=_DROP)
@click.argument("name")
@click.argument("keys", nargs=-1)
@click.option("--all", "all_of_them", is_flag=True, help="All that are set aside.")
@click.pass_obj
def drop(
    line: CommandLine, name: str, keys: tuple[str, ...], all_of_them: bool
) -> int:
    """Never try rows of NAME again, by their KEYS as listed; they stay as they are. Exit status 1
    if there is none.
    """
    with line.client() as client:
        wanted = _wanted(keys, all_of_them)
        count = SetAside(client).drop(name, wanted)
    return _tell(line, name, count, "dropped")


def _wanted(keys: tuple[str, ...], all_of_them: bool) -> list[str] | None:
    if bool(keys) == all_of_them:
        raise click.UsageError("name the rows by their keys, or pass --all")
    return None if all_of_them else [*keys]


def _tell(line: CommandLine, name: str, count: int, what: str) -> int:
    if line.json:
        click.echo(json.dumps({"name": name, "rows": count}))
    elif count:
        click.echo(escaped(f"{name}: {counted(count, 'row')} {what}"))
    else:
        click.echo(escaped(f"{name}: no such row is set aside"), err=True)
    return 0 if count else 1


BATCHES: Final = PluginCommand(command=batches, section=Section.OPERATE)
