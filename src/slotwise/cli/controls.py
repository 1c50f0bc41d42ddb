"""``slotwise controls``: which orders were given, by whom and why."""

from __future__ import annotations

import json
from itertools import islice

import click

from slotwise.cli.shared.command import Command
from slotwise.cli.shared.operations import operation, tell_pause
from slotwise.cli.shared.options import Given, common, pass_given
from slotwise.cli.shared.output import moment, print_json_list, print_table
from slotwise.contrib.logging import plain
from slotwise.store.schema.audit_rows import Order


@click.command(
    cls=Command,
    short_help="Which orders were given, by whom, when and why.",
    examples="""
    slotwise controls
    slotwise controls nightly-report -n 50 --json
    """,
)
@click.argument("name", required=False)
@click.option("-n", "count", type=click.IntRange(1), default=20, show_default=True, help="At most so many lines.")
@common
@pass_given
def controls(given: Given, name: str | None, count: int) -> None:
    """The orders given so far, the newest first; with NAME, those about that job and those about all."""
    with operation(given, None) as (found, reader):
        paused = found.all_paused()
        orders = list(islice(found.orders(name, limit=count), count))
        if name is not None and all(order.job != name for order in orders):
            reader.known(name)
    if given.json:
        print_json_list(_json(order) for order in orders)
        return
    tell_pause(paused)
    if not orders:
        click.echo("no orders yet")
        return
    print_table(("AT", "AUTHOR", "ORDER", "JOB", "SLOT", "WITH", "NOTE"), map(_row, orders))


def _row(order: Order) -> list[str]:
    said = ", ".join(f"{name}={value}" for name, value in order.arguments.items())
    return [
        moment(order.at), order.author, order.command, order.job or "–", moment(order.slot), said or "–",
        order.note or "–",
    ]  # fmt: skip


def _json(order: Order) -> dict[str, object]:
    return {
        "id": order.id, "at": plain(order.at), "author": order.author, "command": order.command, "job": order.job,
        "slot": plain(order.slot), "arguments": json.loads(json.dumps(order.arguments)), "note": order.note,
    }  # fmt: skip
