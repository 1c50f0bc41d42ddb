"""Commands of other distributions, and those of our own that are optional: found by entry points.

A plug-in is imported when its command runs, or when all commands are listed. One that cannot be
imported costs a line on stderr, and no other command.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Final

import click

from slotwise import ConfigurationError
from slotwise.cli.shared.options import COMMON
from slotwise.spi import PluginCommand

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "slotwise.commands"


class BrokenCommand(click.Command):
    """Replaces a plug-in that cannot be loaded, and says why when it runs. It is listed only with
    a ``cure``, the command that installs what it needs.
    """

    def __init__(self, name: str, problem: str, cure: str | None = None) -> None:
        super().__init__(name, hidden=cure is None, short_help=f"Needs: {cure}")
        self.problem = problem

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: object,
    ) -> click.Context:
        raise ConfigurationError(self.problem)


@cache
def plugins() -> dict[str, EntryPoint]:
    """Return the entry points by the names of their commands; of two with one name, the first by
    distribution.
    """
    # Imported late: this module takes longer than a built-in command line.
    from importlib.metadata import entry_points

    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        other = found.get(entry.name)
        # The name of a distribution is parsed from its metadata at each look.
        if other is None or _distribution(entry) < _distribution(other):
            found[entry.name] = entry
    return found


@cache
def plugin(name: str) -> PluginCommand:
    """Load a plug-in. One that cannot be loaded is a BrokenCommand."""
    entry = plugins()[name]
    try:
        loaded: object = entry.load()
    except Exception as error:  # whatever a module of others raises
        return _broken(entry, error)
    found = (
        PluginCommand(command=loaded) if isinstance(loaded, click.Command) else loaded
    )
    if not isinstance(found, PluginCommand):
        expected = "expected a click command or a PluginCommand"
        return _broken(entry, f"{entry.value} is {loaded!r:.60}; {expected}")
    for command in _all_of(found.command):
        _add_common(command)
    return found


def _distribution(entry: EntryPoint) -> str:
    return "" if entry.dist is None else entry.dist.name


def _broken(entry: EntryPoint, why: Exception | str) -> PluginCommand:
    """Stand in for this plug-in, with the extra to install if it has named one."""
    owner = _distribution(entry)
    if isinstance(why, ImportError) and entry.extras:
        extras = ",".join(entry.extras)
        cure = f"pip install '{owner}[{extras}]'"
        told = f"the command {entry.name} needs what is not installed ({why}); run: {cure}"
        return PluginCommand(command=BrokenCommand(entry.name, told, cure))
    told = f"{type(why).__name__}: {why}" if isinstance(why, Exception) else why
    line = " ".join(told.split())
    problem = f"the command {entry.name} of {owner} cannot be loaded: {line}"
    return PluginCommand(command=BrokenCommand(entry.name, problem))


def _all_of(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            yield from _all_of(inner)


def _add_common(command: click.Command) -> None:
    """Add the common options that a command lacks, so that they may stand after it."""
    there = {parameter.name for parameter in command.params}
    source = click.Command("common")
    for option in COMMON:
        option(source)
    command.params += [one for one in source.params if one.name not in there]
