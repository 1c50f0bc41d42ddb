"""``slotwise shards``: which databases an application has, and how they are; the map of keys."""

from __future__ import annotations

import click

from slotwise import ConfigurationError
from slotwise.cli.shared import exits
from slotwise.cli.shared.options import (
    Command,
    Given,
    Group,
    common,
    confirm,
    dry_run,
    pass_given,
    yes,
)
from slotwise.cli.shared.output import print_json_list, print_table
from slotwise.cli.shared.shards import configured_shards
from slotwise.cli.shared.terminal import say
from slotwise.contrib.shards import Shard, ShardedRegistry, Shards
from slotwise.contrib.shards.overview import Applied, ShardInfo, apply_map, look_at
from slotwise.spi import short_duration

_COLUMNS = ("SHARD", "PARTS", "WORKERS", "DUE", "OLDEST", "PROBLEM")


@click.group(
    cls=Group,
    default=("list",),
    examples="""
    slotwise shards
    slotwise shards apply
    """,
)
@common
def shards() -> None:
    """List the shards of an application, and apply its map of keys."""


def _found(given: Given) -> tuple[Shards, list[Shard]]:
    """Return all shards, of the application or of the settings file, and the chosen ones."""
    found = configured_shards(given.text("config"))
    if found is None:
        registry = given.whole_registry()
        if not isinstance(registry, ShardedRegistry):
            raise ConfigurationError(
                "there are no shards; write [shards.members] in the settings file, or make "
                "the application's registry a ShardedRegistry"
            )
        found = registry.shards
    return found, found.chosen(given.shards)


@shards.command(
    "list",
    cls=Command,
    notes="0  all shards answer and fit\n3  one does not",
    examples="""
    slotwise shards
    slotwise shards list --shard us
    slotwise shards --json | jq '.[] | select(.problem)'
    """,
)
@common
@pass_given
def list_shards(given: Given) -> int:
    """List the shards: how many parts of the keys each has, its live workers, the rows that are
    due, and what is wrong. The last line is the total of the databases that answer.
    """
    every, chosen = _found(given)
    lines = look_at(every, chosen, given.common_settings())
    if given.json:
        print_json_list(lines)
    else:
        print_table(_COLUMNS, [*map(_row, lines), _total(lines)], last="PROBLEM")
    return exits.DATABASE if any(one.problem for one in lines) else exits.OK


def _row(line: ShardInfo) -> list[str]:
    return [
        f"{line.shard} (default)" if line.is_default else line.shard,
        str(line.parts),
        _shown(line.workers),
        _shown(line.due),
        "–" if line.oldest is None else short_duration(line.oldest),
        line.problem or "–",
    ]


def _total(lines: list[ShardInfo]) -> list[str]:
    answered = [line for line in lines if line.workers is not None]
    databases = {line.installation or line.shard: line for line in answered}
    parts = sum(line.parts for line in answered)
    answered = list(databases.values())
    return [
        f"total of {len(answered)}",
        str(parts),
        str(sum(line.workers or 0 for line in answered)),
        str(sum(line.due or 0 for line in answered)),
        "",
        "",
    ]


def _shown(count: int | None) -> str:
    return "–" if count is None else str(count)


@shards.command(
    "apply",
    cls=Command,
    notes="0  all chosen shards have the map\n3  one was not written",
    examples="""
    slotwise shards apply --dry-run
    slotwise shards apply --yes
    slotwise shards apply --shard us --yes       this database is shard us from now on
    """,
)
@yes
@dry_run
@common
@pass_given
def apply_shards(given: Given, yes: bool, dry_run: bool) -> int:
    """Write the map of keys of these settings into the database of each shard.

    Processes with another map start nothing from then on, within half a minute: run it as a step
    of the deploy that changes the map, before the new processes start. A database that says that
    it is another shard is written only if --shard names this one.
    """
    every, chosen = _found(given)
    names = ", ".join(one.name for one in chosen)
    confirm(
        f"Write map {every.fingerprint} into {names}? Processes with another map stop.",
        sure=yes or dry_run,
    )
    done = apply_map(
        every,
        chosen,
        given.common_settings(),
        renames=bool(given.shards),
        dry_run=dry_run,
    )
    if given.json:
        print_json_list(done)
    else:
        for one in done:
            say(_told(one, dry_run), err=one.problem is not None)
    return exits.DATABASE if any(one.problem for one in done) else exits.OK


def _told(one: Applied, dry_run: bool) -> str:
    if one.problem is not None:
        return f"shard {one.shard}: not written: {one.problem}"
    if not one.is_changed:
        return f"shard {one.shard}: it has this map already"
    before = "" if one.former_map is None else f", in place of {one.former_map}"
    is_renamed = one.former_name not in (None, one.shard)
    name = f", which was shard {one.former_name}" if is_renamed else ""
    verb = "would be written" if dry_run else "written"
    return f"shard {one.shard}: {verb}{before}{name}"
