"""``slotwise lock-keys`` and ``slotwise cron-jobs``: the keys of advisory locks, and the jobs of
CRON_JOBS.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from slotwise import ConfigurationError, InvalidCronJobs
from slotwise.cli.shared import exits
from slotwise.cli.shared.options import (
    Command,
    Given,
    common,
    pass_given,
)
from slotwise.cli.shared.output import print_json, print_table
from slotwise.cli.shared.terminal import say, say_json
from slotwise.contrib.advisory.cron_jobs import VARIABLE, ZONE_VARIABLE
from slotwise.contrib.wording import counted
from slotwise.spi import PluginCommand, Section

if TYPE_CHECKING:
    from slotwise.contrib.advisory import CronJob, KeyRange
    from slotwise.contrib.advisory.lock_keys import KeyUse, LockKeys, Search

_COLUMNS: Final = ("SERVICE", "KEYS", "USED", "NEXT", "GAPS")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Keys:
    """The keys of one service."""

    range: KeyRange
    used: list[int]
    #: The lowest free key; None if there is none.
    next: int | None
    gaps: list[KeyRange]

    def as_json(self) -> dict[str, object]:
        return {
            "service": self.range.service,
            "start": self.range.start,
            "end": self.range.end,
            "used": self.used,
            "next": self.next,
            "gaps": [[gap.start, gap.end] for gap in self.gaps],
        }

    def row(self) -> list[str]:
        return [
            self.range.service,
            str(self.range),
            str(len(self.used)),
            "–" if self.next is None else str(self.next),
            ", ".join(map(str, self.gaps)) or "–",
        ]


@click.command(
    "lock-keys",
    cls=Command,
    short_help="Check the registry of lock keys; list keys in use and free ones.",
    notes="""
    0  no problem
    1  a collision, a key out of range or used twice, or CRON_JOBS cannot be read
       with --service, also no such service, or it has no key left
       with --strict, also an unused gap
    """,
    examples="""
    slotwise lock-keys
    slotwise lock-keys lt-credit-service=../credit/src lt-invoice-service=../invoice/src
    slotwise lock-keys --strict --registry ops/lock-keys.toml deploy/
    slotwise lock-keys --service lt-credit-service ../credit/src --json | jq '.services[].next'
    """,
)
@click.argument("paths", metavar="[[SERVICE=]PATH]...", nargs=-1)
@click.option(
    "--registry",
    metavar="FILE",
    default="lock-keys.toml",
    show_default=True,
    help="The registry, a TOML file.",
)
@click.option("--service", metavar="NAME", help="List the keys of this service only.")
@click.option("--strict", is_flag=True, help="Fail on unused gaps, too.")
@common
@pass_given
def lock_keys(
    given: Given,
    paths: tuple[str, ...],
    registry: str,
    service: str | None,
    strict: bool,
) -> int:
    """List each service with its range, its keys in use, its next free key and its unused gaps;
    then all problems: collisions between services, keys out of range, keys used twice. Needs no
    database.

    Keys in use are found in all text files of PATH, whatever their language (lock_key=, lockKey =,
    "lockKey":), and in CRON_JOBS of the environment. Binary files and files above 1 MiB are
    skipped, and counted. SERVICE= names the owner of the keys in a PATH.
    """
    keys, uses, search = _read(registry, paths)
    used = {use.key for use in uses}
    if service is not None:
        keys.next(service, used)  # raises if there is none
    found = _found(keys, uses)
    gaps = _gaps(keys, used)
    refused = gaps if strict else []
    is_ok = not found and not refused
    services = [
        _keys_of(keys, one, used)
        for one in keys.ranges
        if service in (None, one.service)
    ]
    if given.json:
        told = {
            "ok": is_ok,
            "services": [one.as_json() for one in services],
            "problems": found,
            "gaps": gaps,
            "keys": len(used),
            "files_read": search.read,
            "files_skipped": len(search.skipped),
        }
        print_json(told)
    else:
        _say_files(search, paths)
        print_table(_COLUMNS, [one.row() for one in services])
        say(*(f"error: {line}" for line in found), err=True)
        say(*(f"gap: {line}" for line in gaps), err=True)
        if not found:
            checked = f"{counted(len(keys.ranges), 'service')}, {counted(len(used), 'key')} in use"
            say(f"{checked}: {_verdict(len(refused))}")
    return exits.OK if is_ok else exits.FAILED


def _found(keys: LockKeys, uses: list[KeyUse]) -> list[str]:
    """Everything that is wrong, a line for each."""
    from slotwise.contrib.advisory.lock_keys import problems

    return [*keys.collisions(), *_unreadable(), *problems(keys, uses)]


def _gaps(keys: LockKeys, used: set[int]) -> list[str]:
    from slotwise.contrib.advisory.lock_keys import unused

    gaps = [f"{gap} belong to no service" for gap in keys.gaps()]
    for one in keys.ranges:
        gaps += [f"{gap} of {gap.service} are not used" for gap in unused(one, used)]
    return gaps


def _keys_of(keys: LockKeys, one: KeyRange, used: set[int]) -> _Keys:
    from slotwise.contrib.advisory.lock_keys import unused

    try:
        free = keys.next(one.service, used)
    except ConfigurationError:  # it has used all
        free = None
    return _Keys(
        range=one,
        used=sorted(key for key in used if key in one),
        next=free,
        gaps=list(unused(one, used)),
    )


def _verdict(refused: int) -> str:
    if not refused:
        return "no problem"
    return f"{refused} unused gap{'s' if refused > 1 else ''}, which --strict refuses"


def _unreadable() -> list[str]:
    """Return what is wrong with CRON_JOBS of the environment: its keys would not be found.

    Zones are no matter of keys, and keys that are used twice are compared with those of files.
    """
    from slotwise.contrib.advisory import read_cron_jobs

    if VARIABLE not in os.environ:
        return []
    try:
        read_cron_jobs(os.environ, tz=os.environ.get(ZONE_VARIABLE) or "UTC")
    except InvalidCronJobs as error:
        return [
            line for line in str(error).splitlines() if " is the key of " not in line
        ]
    return []


def _read(
    registry: str, paths: tuple[str, ...]
) -> tuple[LockKeys, list[KeyUse], Search]:
    from slotwise.contrib.advisory.lock_keys import find_uses, read_lock_keys, uses_in

    keys = read_lock_keys(registry)
    search = find_uses(paths, keys)
    return (
        keys,
        search.uses + uses_in(os.environ.get(VARIABLE, ""), VARIABLE, is_file=False),
        search,
    )


def _say_files(search: Search, paths: tuple[str, ...]) -> None:
    if not paths:
        return
    line = f"{search.read} file{'s' * (search.read != 1)} read"
    if search.skipped:
        more = ", …" * (len(search.skipped) > 3)
        line += (
            f", {len(search.skipped)} skipped (binary, or above 1 MiB): "
            f"{', '.join(search.skipped[:3])}{more}"
        )
    say(line, err=True)


@click.command(
    "cron-jobs",
    cls=Command,
    short_help="List the jobs of CRON_JOBS, or all its problems.",
    notes="""
    0  every job can run
    1  one cannot; each problem is a line with its job and field
    """,
    examples="""
    slotwise cron-jobs
    CRON_TZ=Europe/Vienna slotwise cron-jobs --service lt-credit --registry lock-keys.toml
    slotwise cron-jobs --print-schema > cron_jobs.schema.json
    """,
)
@click.option(
    "--service",
    metavar="NAME",
    help="The service whose jobs these are; names begin with it.",
)
@click.option(
    "--registry",
    metavar="FILE",
    help="With --service: keys must be in its range; see slotwise lock-keys.",
)
@click.option(
    "--print-schema",
    is_flag=True,
    help="Print the JSON Schema of CRON_JOBS, for editors and pipelines.",
)
@common
@pass_given
def cron_jobs(
    given: Given, service: str | None, registry: str | None, print_schema: bool
) -> int:
    """List the jobs of CRON_JOBS in the environment, or all its problems. Needs no database.

    A schedule that fixes an hour, day, month or weekday needs CRON_TZ, since Node and Spring use
    their own zone.
    """
    from slotwise.contrib.advisory import (
        cron_jobs_schema,
        read_cron_jobs,
        read_lock_keys,
    )

    if print_schema:
        say_json(json.dumps(cron_jobs_schema(), indent=2))
        return exits.OK
    if registry is not None and service is None:
        raise click.UsageError("--registry: it needs --service")
    lock_keys = None if registry is None else read_lock_keys(registry)
    found: tuple[CronJob, ...] = ()
    problems: list[str] = []
    try:
        found = read_cron_jobs(os.environ, service=service, lock_keys=lock_keys)
    except InvalidCronJobs as error:
        problems = str(error).splitlines()
    if given.json:
        jobs = [
            {
                "job": job.name,
                "lock_key": job.lock_key,
                "schedule": str(job.schedule),
                "zone": job.schedule.zone.key,
            }
            for job in found
        ]
        print_json({"ok": not problems, "jobs": jobs, "problems": problems})
    elif problems:
        for line in problems:
            say(f"error: {line}", err=True)
    else:
        rows = [
            [
                job.name,
                str(job.lock_key),
                job.schedule.expression,
                job.schedule.zone.key,
            ]
            for job in found
        ]
        print_table(["JOB", "KEY", "SCHEDULE", "ZONE"], rows)
    return exits.FAILED if problems else exits.OK


LOCK_KEYS = PluginCommand(command=lock_keys, section=Section.SET_UP)
CRON_JOBS = PluginCommand(command=cron_jobs, section=Section.TIME)
