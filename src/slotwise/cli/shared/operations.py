"""What all orders share on the command line: author, note, rehearsal, and the question before many rows change."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click

from slotwise.cli.shared.options import Given
from slotwise.cli.shared.output import moment, print_json_object
from slotwise.client.operations import Controls
from slotwise.contrib.logging import escaped, iso, plain
from slotwise.model.records import RECURRING
from slotwise.store.operations.pauses import Paused
from slotwise.store.reading.reader import Reader
from slotwise.store.slots.store import Store

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def order(function: AnyFunction) -> AnyFunction:
    """The options of every order."""
    for option in (
        click.option("--dry-run", is_flag=True, help="Say what it would do, and change nothing."),
        click.option("--note", metavar="TEXT", help="Why; for the audit."),
        click.option("--author", metavar="NAME", envvar="SLOTWISE_AUTHOR", help="Who; default: user@host."),
    ):
        function = option(function)
    return function


def instance(function: AnyFunction) -> AnyFunction:
    """For orders that may be about one of a task's recurring instances."""
    option = click.option("--instance", default=RECURRING, metavar="ID", help="This recurring instance, not the job.")
    return option(function)


def yes(function: AnyFunction) -> AnyFunction:
    """For orders that change many rows."""
    return click.option("--yes", is_flag=True, help="Do not ask.")(function)


@contextmanager
def operation(given: Given, author: str | None) -> Iterator[tuple[Controls, Reader]]:
    """Whoever gives orders, and whoever reads; with --app, they know the application's jobs."""
    with given.store() as store:
        known = Store(store.database, given.registry().definitions) if "app" in given.values else store
        controls = Controls(lambda: known)
        yield controls.by(author) if author else controls, Reader(store)


def confirm(question: str, *, sure: bool) -> None:
    """Ask; without a terminal, refuse. Raises Abort or UsageError."""
    if sure:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Say so with --yes, or look first with --dry-run")
    click.confirm(question, abort=True, err=True)


def tell(given: Given, text: str, *, dry_run: bool, **facts: Any) -> None:
    """What was done: a line, or an object."""
    if given.json:
        print_json_object({**plain(facts), "dry_run": dry_run})
    else:
        click.echo(f"would have: {text}" if dry_run else text)


def tell_pause(paused: Paused | None) -> None:
    """On stderr, that nothing starts, whatever else was said; nothing where nobody has paused all."""
    if paused is not None:
        why = f": {paused.note}" if paused.note else ""
        said = f"all is paused since {moment(paused.since)}, by {paused.author}{why}; nothing starts before: "
        click.echo(escaped(f"{said}slotwise resume --all"), err=True)


def exact_slot(reader: Reader, name: str, instance: str, given: datetime) -> datetime:
    """The slot that was meant: listings show milliseconds, and a trigger's slot has microseconds."""
    width = timedelta(milliseconds=1) if given.microsecond else timedelta(seconds=1)
    found = reader.slots_within(name, instance, given, given + width)
    if given in found or len(found) != 1:
        return given
    return found[0]


def when(slot: datetime) -> str:
    """A slot in a sentence."""
    return iso(slot)
