"""``slotwise doctor``: what is wrong with database and cluster, and what to do."""

from __future__ import annotations

import click

from slotwise.cli.shared import exits
from slotwise.cli.shared.options import Command, Given, common, pass_given
from slotwise.cli.shared.output import print_json
from slotwise.cli.shared.terminal import say
from slotwise.contrib.doctor import Severity, examine
from slotwise.spi import PluginCommand, Section


@click.command(
    "doctor",
    cls=Command,
    short_help="Examine database and cluster; say what is wrong, and the cure.",
    notes="""
    0  nothing, or notes alone
    1  a warning or an error
    """,
    examples="""
    slotwise doctor
    slotwise doctor --json
    """,
)
@common
@pass_given
def command(given: Given) -> int:
    """Examine tables, indexes, vacuum, snapshots, pooler, role, clocks, connections, jobs,
    calendars and tasks. It changes nothing.

    Each finding has its severity, what was seen, and the cure; the worst come first.
    """
    found = examine(given.settings())
    bad = [one for one in found if one.severity != Severity.NOTE]
    if given.json:
        print_json({"ok": not bad, "findings": [one.as_json() for one in found]})
        return exits.FAILED if bad else exits.OK
    for one in found:
        say(f"{one.severity}: {one.check}: {one.evidence}")
        if one.cure:
            say(f"  cure: {one.cure}")
    if not found:
        say("nothing found")
    return exits.FAILED if bad else exits.OK


DOCTOR = PluginCommand(command=command, section=Section.SEE)
