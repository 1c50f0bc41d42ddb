"""``slotwise audit``: the operations on jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC as NO_OFFSET
from datetime import datetime, timedelta
from itertools import groupby
from typing import Final
from zoneinfo import ZoneInfo

import click

from slotwise.cli.shared.options import (
    Command,
    Given,
    common,
    lines_option,
    pass_given,
)
from slotwise.cli.shared.output import (
    print_json_list,
    print_table,
    say_zones,
    warn_paused,
)
from slotwise.cli.shared.terminal import exact, moment, say
from slotwise.cli.shared.values import Written, instant, within
from slotwise.inspect import (
    RECURRING,
    AuditEntry,
    DeployInfo,
    Inspection,
    json_value,
)

UTC: Final = ZoneInfo("UTC")
#: The revision and days of a calendar in the text form of a schedule.
_DAYS: Final = re.compile(r"@\d+\[[^\]]*\]")
#: The most characters of an author and of an operation's arguments in the table.
_MOST_AUTHOR: Final = 60
_MOST_ARGUMENTS: Final = 70
#: The most entries that are read, to find those of a period.
_MOST_READ: Final = 100_000
#: Before any deploy.
_FIRST: Final = datetime(1970, 1, 1, tzinfo=NO_OFFSET)
#: What a deploy has done for the first time: it is in the history of deploys.
_ADDED: Final = "added"
#: The author of that.
_DEPLOY: Final = "deploy"


@click.command(
    cls=Command,
    short_help="List the operations on jobs: author, time and reason.",
    examples="""
    slotwise audit
    slotwise audit nightly-report -n 50 --json
    slotwise audit --since 7d --before 2026-01-31T02:00Z
    """,
)
@click.argument("name", required=False)
@click.option(
    "--since",
    callback=instant,
    metavar="TIME",
    help="Only operations since this instant.",
)
@click.option(
    "--before",
    callback=instant,
    metavar="TIME",
    help="Only operations before this instant.",
)
@lines_option(20)
@common
@pass_given
def audit(
    given: Given,
    name: str | None,
    since: Written | None,
    before: Written | None,
    count: int,
) -> None:
    """List the operations on jobs, the newest first; with NAME, those on that job and those on
    all.

    The operation "deploy" has changed a schedule, and "added" has planned a job for the first
    time. Instances that followed a renamed task one after another are one line.
    """
    with given.inspection() as inspect:
        paused = inspect.all_paused()
        zone = None if name is None else inspect.zone(name)
        entries = _entries(
            inspect,
            name,
            within(since, zone, "--since"),
            within(before, zone, "--before"),
            count,
        )
        if name is not None and all(entry.job != name for entry in entries):
            inspect.check_name(name)
        zones = inspect.zones(
            {
                (entry.job, entry.id or RECURRING)
                for entry in entries
                if entry.job is not None
            }
        )
    if given.json:
        print_json_list(_audit_json(entry) for entry in entries)
        return
    warn_paused(paused)
    if not entries:
        say("no such operations" if since or before else "no operations yet")
        return
    rows = [
        _audit_row(entry, zones.get((entry.job or "", entry.id or RECURRING), UTC))
        for entry in entries
    ]
    print_table(
        ("AT", "AUTHOR", "OPERATION", "JOB", "SLOT", "WITH", "NOTE"),
        rows,
        spare=("WITH", "SLOT"),
        folds="NOTE",
    )
    say_zones(zones.values())


def _entries(
    inspect: Inspection,
    name: str | None,
    since: datetime | None,
    before: datetime | None,
    count: int,
) -> list[AuditEntry]:
    """Return the newest operations of a period, and the jobs that deploys have added in it."""

    def is_within(at: datetime) -> bool:
        return (since is None or at >= since) and (before is None or at < before)

    def operations(size: int) -> tuple[list[AuditEntry], bool]:
        entries = inspect.audit(name, limit=size)
        is_all = len(entries) < size
        is_earlier = since is not None and any(entry.at < since for entry in entries)
        found = [entry for entry in entries if is_within(entry.at)]
        return list(_together(found)), is_all or is_earlier

    def added(size: int) -> tuple[list[AuditEntry], bool]:
        start = since or _FIRST
        end = before or inspect.now() + timedelta(days=1)
        deploys = inspect.deploys(start, end, job=name, id=RECURRING, limit=size)
        new = [_added(one) for one in deploys if one.former is None]
        return new, len(deploys) < size

    found = [*_newest(operations, count), *_newest(added, count)]
    return sorted(found, key=lambda entry: entry.at, reverse=True)[:count]


def _newest(
    read: Callable[[int], tuple[list[AuditEntry], bool]], count: int
) -> list[AuditEntry]:
    """Read more and more until there are enough, or all."""
    size = count
    while True:
        found, is_all = read(size)
        if len(found) > count or is_all or size >= _MOST_READ:
            return found[:count]
        size *= 4


def _together(entries: Iterable[AuditEntry]) -> Iterator[AuditEntry]:
    """Yield instances that followed a renamed task one after another as one entry."""

    def kind(entry: AuditEntry) -> tuple[object, ...]:
        if entry.operation != "rename":
            return (entry.number,)
        former = entry.arguments.get("former")
        return entry.operation, entry.author, entry.job, former, entry.id == RECURRING

    for _, group in groupby(entries, kind):
        newest, *others = group
        if others:
            former = newest.arguments.get("former")
            told = {"former": former, "instances": len(others) + 1}
            newest = replace(newest, arguments=told)
        yield newest


def _added(deploy: DeployInfo) -> AuditEntry:
    told = {
        "after": deploy.schedule,
        "revision": deploy.revision,
        "worker": deploy.worker,
    }
    return AuditEntry(
        number=0,
        at=deploy.at,
        author=_DEPLOY,
        operation=_ADDED,
        job=deploy.job,
        slot=None,
        arguments={name: value for name, value in told.items() if value is not None},
        note=None,
    )


def _audit_row(entry: AuditEntry, zone: ZoneInfo) -> list[str]:
    said = ", ".join(
        f"{name}={_DAYS.sub('', str(value))}"
        for name, value in entry.arguments.items()
    )
    return [
        moment(entry.at, zone),
        _cut(entry.author, _MOST_AUTHOR),
        entry.operation,
        entry.job or "–",
        "–" if entry.slot is None else exact(entry.slot, zone),
        _cut(said, _MOST_ARGUMENTS) or "–",
        entry.note or "–",
    ]


def _cut(text: str, most: int) -> str:
    """Return the text; of a longer one the beginning and the end, where the database has written
    the role of an author.
    """
    if len(text) <= most:
        return text
    end = most // 2
    return f"{text[: most - end - 1]}…{text[-end:]}"


def _audit_json(entry: AuditEntry) -> dict[str, object]:
    return {
        "number": entry.number or None,
        "at": json_value(entry.at),
        "author": entry.author,
        "operation": entry.operation,
        "job": entry.job,
        "slot": json_value(entry.slot),
        "arguments": json.loads(json.dumps(entry.arguments)),
        "note": entry.note,
    }
