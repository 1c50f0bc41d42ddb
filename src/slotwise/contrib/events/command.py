"""``slotwise events``: what was published, for whom it has not ended, and how far handlers are
behind.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Final

import click

from slotwise import Client, ConfigurationError
from slotwise.contrib.events import reading, repair
from slotwise.contrib.events.lanes import Handlers
from slotwise.contrib.events.reading import EventInfo, HandlerLag
from slotwise.contrib.events.row_ids import row_id
from slotwise.contrib.events.subscriptions import all_subscriptions
from slotwise.contrib.wording import counted
from slotwise.inspect import TaskFilter
from slotwise.spi import (
    CommandLine,
    PluginCommand,
    Section,
    escaped,
    format_duration,
)

_GROUP: Final = """\b
Examples:
  slotwise events                    the newest events
  slotwise events lag                how far each handler is behind
"""
_LIST: Final = """\b
Examples:
  slotwise events list
  slotwise events list --state dead
  slotwise events list --limit 5 --json
"""
_SHOW: Final = """\b
Examples:
  slotwise events show 812
"""
_RETRY: Final = """\b
Examples:
  slotwise events retry receipt             all dead events of a handler
  slotwise events retry receipt 812
"""
_LAG: Final = """\b
Examples:
  slotwise events lag
  slotwise events lag --json
"""
_STATES: Final = ("waiting", "kept", "blocked", "dead", "paused", "ended")
#: A walk of the repair after a retry looks at so many pages at most; a worker goes on.
_PAGES: Final = 20


@click.group(
    short_help="List events; retry what is dead; how far handlers are behind.",
    invoke_without_command=True,
    epilog=_GROUP,
)
@click.pass_context
def events(ctx: click.Context) -> None:
    """List events, show one, retry what is dead, and say how far handlers are behind."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(listing)


@events.command("list", short_help="List events, the newest first.", epilog=_LIST)
@click.option(
    "--state",
    type=click.Choice(_STATES),
    help="Only those; kept: without a handler so far.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="How many to list at most.",
)
@click.pass_obj
def listing(line: CommandLine, state: str | None = None, limit: int = 20) -> None:
    """List events, the newest first, with the handlers for which they have not ended."""
    with line.client() as client:
        dialect = client.dialect
        found = client.within(
            lambda own: reading.listed(
                own, dialect, limit=limit, state=state, key=None
            )
        )
    if line.json:
        click.echo(json.dumps([_document(one) for one in found]))
        return
    for one in found:
        _say(_line(one))
    if not found:
        _say("no events")


@events.command(
    "show", short_help="Show an event, and its state by handler.", epilog=_SHOW
)
@click.argument("id", type=click.IntRange(1, 2**62))
@click.pass_obj
def show(line: CommandLine, id: int) -> int:
    """Show an event by its number, and its state for each handler that has not ended it.

    Exit status 1 if there is none: it was never published, or its retention is over.
    """
    with line.client() as client:
        dialect = client.dialect
        one = client.within(lambda own: reading.found(own, dialect, id))
        data = client.within(lambda own: reading.data_of(own, dialect, id))
    if one is None:
        _say(
            f"there is no event {id}: never published, or deleted after its retention"
        )
        return 1
    text = "" if data is None else data.decode(errors="backslashreplace")
    if line.json:
        click.echo(json.dumps({**_document(one), "data": text}))
        return 0
    _say(_line(one))
    _say(f"  published   {one.published:%Y-%m-%d %H:%M:%SZ}")
    given = (
        "waits" if one.fanned_out is None else f"{one.fanned_out:%Y-%m-%d %H:%M:%SZ}"
    )
    _say(f"  given out   {given}, to {counted(one.handlers, 'handler')}")
    for handler, state in sorted(one.open.items()):
        task = one.tasks.get(handler, handler)
        _say(f"  {handler}: {state}; slotwise explain {task} --id {row_id(one.id)}")
    for handler in one.ended:
        _say(f"  {handler}: ended")
    _say(f"  data        {text[:2000] or 'none'}")
    return 0


@events.command(
    "retry", short_help="Let dead events of a handler be tried again.", epilog=_RETRY
)
@click.argument("handler")
@click.argument("ids", type=click.IntRange(1, 2**62), nargs=-1)
@click.pass_obj
def retry(line: CommandLine, handler: str, ids: tuple[int, ...]) -> int:
    """Let dead events of a handler be tried again: these, or all, also those that it got under a
    former name. Those that were blocked behind them follow in order.

    Exit status 1 if none of them is dead.
    """
    with line.client() as client:
        count = _retried(client, _names_of(client, handler), ids)
        _promote(client)
    if line.json:
        click.echo(json.dumps({"handler": handler, "retried": count}))
    else:
        _say(f"{counted(count, 'dead event')} of {handler} to be tried again")
    return 0 if count else 1


def _retried(client: Client, names: Sequence[str], ids: tuple[int, ...]) -> int:
    """Let dead rows of these names be tried again, each of these or all, and let the audit list
    it; return how many there were.
    """
    filters = [TaskFilter(id=row_id(id)) for id in ids] or [TaskFilter()]
    retry = client.operations.retry_tasks
    return sum(retry(name, where=where) for name in names for where in filters)


def _names_of(client: Client, handler: str) -> Sequence[str]:
    """Return the names under which a handler has rows, by its name or a former one."""
    dialect = client.dialect
    found = client.within(lambda own: all_subscriptions(own, dialect.tables))
    handlers = Handlers(found)
    if handler not in handlers.handler_of:
        known = ", ".join(sorted(handlers.names)) or "none"
        raise ConfigurationError(
            f"there is no handler {handler!r:.100}; known: {known}"
        )
    return handlers.names[handlers.handler_of[handler]]


def _promote(client: Client) -> None:
    """Let what was retried run, if nothing stands before it."""
    dialect = client.dialect
    place = repair.BEGIN
    for _ in range(_PAGES):
        look = partial(repair.repair, dialect=dialect, place=place)
        found = client.within(look)
        if found.names:
            client.database.wake_ups.tell(*found.names)
        place = found.place
        if place == repair.BEGIN:
            return


@events.command("lag", short_help="How far each handler is behind.", epilog=_LAG)
@click.pass_obj
def lag(line: CommandLine) -> None:
    """Say how many events wait for the fan-out, and how far each handler is behind: the age of its
    oldest event that has not ended, how many are open and dead, and the key that is blocked for
    longest.
    """
    with line.client() as client:
        dialect = client.dialect
        backlog = client.within(lambda own: reading.backlog(own, dialect))
        found = client.within(lambda own: reading.lags(own, dialect))
    if line.json:
        handlers = [one.as_json() for one in found]
        click.echo(json.dumps({"fan_out": backlog.as_json(), "handlers": handlers}))
        return
    if backlog.waiting:
        waiting = counted(backlog.waiting, "event", "waits", "wait")
        _say(f"{waiting} for the fan-out, {_age(backlog.lag)}")
    for one in found:
        _say(_lag_line(one))
    if not found:
        _say("no handlers are registered; a worker registers them at its start")


def _lag_line(one: HandlerLag) -> str:
    behind = "nothing is open" if one.lag is None else _age(one.lag)
    text = f"{one.handler}  {behind}  {one.open} open, {one.dead} dead"
    if one.blocked_event is not None:
        text += f"  key {one.blocked_key} is blocked by event {one.blocked_event}"
    return text


def _age(lag: timedelta | None) -> str:
    seconds = timedelta(seconds=round((lag or timedelta(0)).total_seconds()))
    return f"{format_duration(seconds)} behind"


def _line(one: EventInfo) -> str:
    key = "" if one.key is None else f"  key {one.key}"
    rows = ", ".join(f"{name} {state}" for name, state in sorted(one.open.items()))
    when = f"{one.published:%Y-%m-%d %H:%M:%SZ}"
    return f"{one.id}  {when}  {one.name}{key}  {one.state}" + (
        f": {rows}" if rows else ""
    )


def _document(one: EventInfo) -> dict[str, object]:
    return {**one.as_json(), "state": one.state}


def _say(text: str) -> None:
    click.echo(escaped(text))


EVENTS: Final = PluginCommand(command=events, section=Section.SEE)
