"""``slotwise export``: manifests that run the application elsewhere, and what monitoring needs."""

from __future__ import annotations

from datetime import timedelta
from importlib.resources import files

import click

from slotwise.cli.shared import exits
from slotwise.cli.shared.options import Command, Given, Group, common, kept, pass_given
from slotwise.cli.shared.output import print_json
from slotwise.cli.shared.terminal import say, say_document
from slotwise.cli.shared.values import duration
from slotwise.spi import PluginCommand, Section

_EXAMPLES = """
slotwise export kubernetes --app jobs --image registry.example/shop:1.4 > shop.yaml
slotwise export kubernetes --app jobs --mapping kubernetes.toml --revision 1.4 | kubectl apply -f -
slotwise export kubernetes --app jobs --mapping kubernetes.toml --strict
slotwise export alerts > slotwise.rules.yml
"""


@click.group(
    cls=Group,
    short_help="Print manifests, a dashboard and alert rules.",
    examples=_EXAMPLES,
)
@common
def export() -> None:
    """Print manifests that run the application elsewhere, and what monitoring needs. Needs no
    database.
    """


@export.command(
    cls=Command,
    short_help="Print manifests for Kubernetes.",
    notes="""
    0  all objects are printed; notes on stderr change nothing
    1  a job cannot have a CronJob, or the mapping file has a mistake
       with --strict, also if there is a note
    """,
    examples=_EXAMPLES,
)
@click.option(
    "--image", metavar="IMAGE", help="The image with slotwise and the application."
)
@click.option(
    "--mapping",
    metavar="FILE",
    help="A mapping file, TOML or YAML: names, namespace, Secret, nodes, resources, CronJobs.",
)
@click.option(
    "--name",
    metavar="NAME",
    help="The name of the application; objects' names begin with it.  [slotwise]",
)
@click.option(
    "--early",
    metavar="DURATION",
    callback=duration,
    help="How far the clock of the controller may be ahead.  [30s]",
)
@click.option(
    "--strict", is_flag=True, help="Fail if a CronJob differs from the job's schedule."
)
@kept("--revision", metavar="TEXT", help="The deploy's id, as its workers will have it.")
@common
@pass_given
def kubernetes(
    given: Given,
    image: str | None,
    mapping: str | None,
    name: str | None,
    early: timedelta | None,
    strict: bool,
) -> int:
    """Print a Deployment of workers for each set of tags, CronJobs for the jobs that request one,
    and a migration Job.

    A CronJob's pod runs `slotwise run JOB --slot due`. Where five fields cannot say what the job's
    schedule says, there is a note on stderr and in an annotation; a schedule that has more slots
    than a CronJob can fire is refused.
    """
    from slotwise.contrib.kubernetes import (
        as_yaml,
        manifests,
        read_plan,
    )  # late: most deploys need only the plan

    registry = given.registry()
    pods = read_plan(
        mapping,
        image=image,
        name=name,
        early=early,
    )
    objects, notes = manifests(pods, registry.settings, registry.definitions.values())
    if given.json:
        print_json({"apiVersion": "v1", "kind": "List", "items": objects})
    else:
        say_document(as_yaml(objects))
    for note in notes:
        say(f"note: {note}", err=True)
    return exits.FAILED if strict and notes else exits.OK


@export.command(
    cls=Command,
    short_help="Print a Grafana dashboard.",
    examples="slotwise export dashboard > slotwise.json",
)
@common
def dashboard() -> None:
    """Print a Grafana dashboard for the figures of `slotwise worker --http`, to be imported into
    Grafana.
    """
    say_document(_shipped("dashboard.json"))


@export.command(
    cls=Command,
    short_help="Print alert rules for Prometheus.",
    examples="slotwise export alerts > slotwise.rules.yml",
)
@common
def alerts() -> None:
    """Print alert rules for the figures of `slotwise worker --http`, a file for rule_files of
    Prometheus.
    """
    say_document(_shipped("alerts.yml"))


def _shipped(name: str) -> str:
    return files("slotwise.contrib.metrics").joinpath(name).read_text(encoding="utf-8")


EXPORT = PluginCommand(command=export, section=Section.SET_UP)
