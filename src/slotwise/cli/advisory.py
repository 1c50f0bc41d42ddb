"""``slotwise lock-keys`` and ``slotwise cron-jobs``: the keys of advisory locks, and the jobs of
CRON_JOBS.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import click

from slotwise import InvalidCronJobs
from slotwise.cli.shared import exits
from slotwise.cli.shared.options import (
    Command,
    Given,
    Group,
    common,
    pass_given,
    with_options,
)
from slotwise.cli.shared.output import print_json, print_json_list, print_table
from slotwise.cli.shared.terminal import say, say_json
from slotwise.contrib.advisory.cron_jobs import VARIABLE, ZONE_VARIABLE
from slotwise.spi import PluginCommand, Section

if TYPE_CHECKING:
    from slotwise.contrib.advisory import CronJob
    from slotwise.contrib.advisory.lock_keys import KeyUse, LockKeys, Search

_reading = with_options(
    click.argument("paths", metavar="[[SERVICE=]PATH]...", nargs=-1),
    click.option(
        "--registry",
        metavar="FILE",
        default="lock-keys.toml",
        show_default=True,
        help="The registry, a TOML file.",
    ),
)


@click.group(
    "lock-keys",
    cls=Group,
    short_help="Check the registry of lock keys.",
    examples="""
    slotwise lock-keys check lt-credit-service=../credit/src
    slotwise lock-keys next lt-credit-service ../credit/src
    """,
)
@common
def lock_keys() -> None:
    """Check which service owns which keys of advisory locks, and where they are used. Needs no
    database.
    """


@lock_keys.command(
    "check",
    cls=Command,
    short_help="List all problems of the registry and of the keys in use.",
    notes="""
    0  no problem
    1  a collision, a key out of range or used twice, or CRON_JOBS cannot be read
       with --strict, also an unused gap
    """,
    examples="""
    slotwise lock-keys check
    slotwise lock-keys check lt-credit-service=../credit/src lt-invoice-service=../invoice/src
    slotwise lock-keys check --strict --registry ops/lock-keys.toml deploy/
    """,
)
@_reading
@click.option("--strict", is_flag=True, help="Fail on unused gaps, too.")
@common
@pass_given
def check_lock_keys(
    given: Given, paths: tuple[str, ...], registry: str, strict: bool
) -> int:
    """List collisions between services, keys out of range, keys used twice, and unused gaps.

    Keys in use are found in all text files of PATH, whatever their language (lock_key=, lockKey =,
    "lockKey":), and in CRON_JOBS of the environment. Binary files and files above 1 MiB are
    skipped, and counted. SERVICE= names the owner of the keys in a PATH.
    """
    from slotwise.contrib.advisory.lock_keys import problems, unused

    keys, uses, search = _read(registry, paths)
    used = {use.key for use in uses}
    found = [*keys.collisions(), *_unreadable(), *problems(keys, uses)]
    gaps = [f"{gap} belong to no service" for gap in keys.gaps()]
    gaps += [
        f"{gap} of {gap.service} are not used"
        for one in keys.ranges
        for gap in unused(one, used)
    ]
    refused = gaps if strict else []
    is_ok = not found and not refused
    if given.json:
        counts = {"keys": len(used), **_counts(search)}
        print_json({"ok": is_ok, "problems": found, "gaps": gaps, **counts})
    else:
        _say_files(search, paths)
        say(*(f"error: {line}" for line in found), err=True)
        say(*(f"gap: {line}" for line in gaps), err=True)
        if not found:
            checked = f"{len(keys.ranges)} services, {len(used)} keys in use"
            say(f"{checked}: {_verdict(len(refused))}")
    return exits.OK if is_ok else exits.FAILED


def _verdict(refused: int) -> str:
    if not refused:
        return "no problem"
    return f"{refused} unused gap{'s' if refused > 1 else ''}, which --strict refuses"


@lock_keys.command(
    "next",
    cls=Command,
    short_help="Print the next free key of a service.",
    notes="""
    0  printed
    1  the service has no key left, or is not in the registry
    """,
    examples="""
    slotwise lock-keys next lt-credit-service ../credit/src
    CRON_JOBS='{"a": {"schedule": "@daily", "lockKey": 1301}}' slotwise lock-keys next lt-credit
    """,
)
@click.argument("service")
@_reading
@common
@pass_given
def next_(given: Given, service: str, paths: tuple[str, ...], registry: str) -> None:
    """Print the lowest key of SERVICE that is not used in PATH or in CRON_JOBS of the
    environment.
    """
    keys, uses, search = _read(registry, paths)
    found = keys.next(service, {use.key for use in uses})
    if given.json:
        print_json({"service": service, "key": found, **_counts(search)})
    else:
        _say_files(search, paths)
        say(found)


@lock_keys.command(
    "list",
    cls=Command,
    short_help="List services with their keys.",
    examples="""
    slotwise lock-keys list
    slotwise lock-keys list lt-credit-service=../credit/src --json
    """,
)
@_reading
@common
@pass_given
def list_(given: Given, paths: tuple[str, ...], registry: str) -> None:
    """List each service with its range, its keys in use and its unused gaps."""
    from slotwise.contrib.advisory.lock_keys import unused

    keys, uses, search = _read(registry, paths)
    used = {use.key for use in uses}
    rows = [
        (one, sorted(key for key in used if key in one), unused(one, used))
        for one in keys.ranges
    ]
    if given.json:
        print_json_list(
            {
                "service": one.service,
                "start": one.start,
                "end": one.end,
                "used": mine,
                "gaps": [[gap.start, gap.end] for gap in gaps],
            }
            for one, mine, gaps in rows
        )
        return
    _say_files(search, paths)
    print_table(
        ["SERVICE", "KEYS", "USED", "GAPS"],
        [
            [one.service, str(one), str(len(mine)), ", ".join(map(str, gaps)) or "–"]
            for one, mine, gaps in rows
        ],
    )


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
        return [line for line in str(error).splitlines() if " is the key of " not in line]
    return []


def _read(registry: str, paths: tuple[str, ...]) -> tuple[LockKeys, list[KeyUse], Search]:
    from slotwise.contrib.advisory.lock_keys import find_uses, read_lock_keys, uses_in

    keys = read_lock_keys(registry)
    search = find_uses(paths, keys)
    return (
        keys,
        search.uses + uses_in(os.environ.get(VARIABLE, ""), VARIABLE, is_file=False),
        search,
    )


def _counts(search: Search) -> dict[str, int]:
    return {"files_read": search.read, "files_skipped": len(search.skipped)}


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


_CRON_EXAMPLES = """
slotwise cron-jobs check
slotwise cron-jobs check --service lt-credit-service --registry lock-keys.toml
slotwise cron-jobs schema > cron_jobs.schema.json
"""


@click.group(
    "cron-jobs", cls=Group, short_help="Check CRON_JOBS.", examples=_CRON_EXAMPLES
)
@common
def cron_jobs() -> None:
    """Check the jobs of CRON_JOBS in the environment, and print its JSON Schema. Needs no
    database.
    """


@cron_jobs.command(
    "check",
    cls=Command,
    short_help="List all problems of CRON_JOBS.",
    notes="""
    0  every job can run
    1  one cannot; each problem is a line with its job and field
    """,
    examples="""
    slotwise cron-jobs check
    CRON_TZ=Europe/Vienna slotwise cron-jobs check --service lt-credit --registry lock-keys.toml
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
@common
@pass_given
def check_cron_jobs(given: Given, service: str | None, registry: str | None) -> int:
    """List the jobs of CRON_JOBS, or all its problems.

    A schedule that fixes an hour, day, month or weekday needs CRON_TZ, since Node and Spring use
    their own zone.
    """
    from slotwise.contrib.advisory import read_cron_jobs, read_lock_keys

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
            [job.name, str(job.lock_key), job.schedule.expression, job.schedule.zone.key]
            for job in found
        ]
        print_table(["JOB", "KEY", "SCHEDULE", "ZONE"], rows)
    return exits.FAILED if problems else exits.OK


@cron_jobs.command(
    cls=Command, short_help="Print the JSON Schema of CRON_JOBS.", examples=_CRON_EXAMPLES
)
@common
def schema() -> None:
    """Print the JSON Schema of CRON_JOBS, for editors and pipelines."""
    from slotwise.contrib.advisory import cron_jobs_schema

    say_json(json.dumps(cron_jobs_schema(), indent=2))


LOCK_KEYS = PluginCommand(command=lock_keys, section=Section.SET_UP)
CRON_JOBS = PluginCommand(command=cron_jobs, section=Section.TIME)
