"""``slotwise cron-jobs``: check ``CRON_JOBS``, and print its JSON Schema."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import click

from slotwise.cli.shared import exits
from slotwise.cli.shared.options import Command, Given, Group, common, pass_given
from slotwise.cli.shared.output import print_json, print_table
from slotwise.cli.shared.terminal import say, say_json
from slotwise.errors import InvalidCronJobs

if TYPE_CHECKING:
    from slotwise.contrib.advisory import CronJob

_EXAMPLES = """
slotwise cron-jobs check
slotwise cron-jobs check --service lt-credit-service --registry lock-keys.toml
slotwise cron-jobs schema > cron_jobs.schema.json
"""


@click.group("cron-jobs", cls=Group, short_help="Check CRON_JOBS.", examples=_EXAMPLES)
@common
def cron_jobs() -> None:
    """Check the jobs of CRON_JOBS in the environment, and print its JSON Schema. Needs no database."""


@cron_jobs.command(
    cls=Command,
    short_help="List all problems of CRON_JOBS.",
    notes="""
    0  every job can run
    1  one cannot; each problem is a line with its job and field
    """,
    examples="""
    slotwise cron-jobs check
    CRON_TZ=Europe/Vienna slotwise cron-jobs check --service lt-credit-service --registry lock-keys.toml
    """,
)
@click.option("--service", metavar="NAME", help="The service whose jobs these are; names begin with it.")
@click.option("--registry", metavar="FILE", help="With --service: keys must be in its range; see slotwise lock-keys.")
@common
@pass_given
def check(given: Given, service: str | None, registry: str | None) -> int:
    """List the jobs of CRON_JOBS, or all its problems.

    A schedule that fixes an hour, day, month or weekday needs CRON_TZ, since Node and Spring use their own zone.
    """
    from slotwise.contrib.advisory import read_cron_jobs, read_lock_keys

    if registry is not None and service is None:
        raise click.UsageError("--registry: it needs --service")
    lock_keys = None if registry is None else read_lock_keys(registry)
    found: tuple[CronJob, ...] = ()
    problems: tuple[str, ...] = ()
    try:
        found = read_cron_jobs(os.environ, service=service, lock_keys=lock_keys)
    except InvalidCronJobs as error:
        problems = error.problems
    if given.json:
        jobs = [
            {"job": job.name, "lock_key": job.lock_key, "schedule": str(job.schedule), "zone": job.schedule.zone.key}
            for job in found
        ]
        print_json({"ok": not problems, "jobs": jobs, "problems": problems})
    elif problems:
        for line in problems:
            say(f"error: {line}", err=True)
    else:
        rows = [[job.name, str(job.lock_key), job.schedule.expression, job.schedule.zone.key] for job in found]
        print_table(["JOB", "KEY", "SCHEDULE", "ZONE"], rows)
    return exits.FAILED if problems else exits.OK


@cron_jobs.command(cls=Command, short_help="Print the JSON Schema of CRON_JOBS.", examples=_EXAMPLES)
@common
def schema() -> None:
    """Print the JSON Schema of CRON_JOBS, for editors and pipelines."""
    from slotwise.contrib.advisory import cron_jobs_schema

    say_json(json.dumps(cron_jobs_schema(), indent=2))
