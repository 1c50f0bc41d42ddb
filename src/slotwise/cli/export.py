"""``slotwise export``: manifests that run the application elsewhere, and what monitoring needs."""

from __future__ import annotations

import sys
from datetime import timedelta
from importlib.resources import files
from pathlib import Path

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
slotwise export systemd --app jobs > slotwise.service
slotwise export alerts > slotwise.rules.yml
"""


@click.group(
    cls=Group,
    short_help="Print manifests, a unit of systemd, a dashboard, alert rules.",
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
@kept(
    "--revision", metavar="TEXT", help="The deploy's id, as its workers will have it."
)
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
    short_help="Print a unit of systemd.",
    examples="""
    slotwise export systemd --app jobs | sudo tee /etc/systemd/system/slotwise.service
    slotwise export systemd --app shop.jobs --name shop-worker
    """,
)
@click.option(
    "--name",
    default="slotwise",
    show_default=True,
    metavar="NAME",
    help="The unit's name.",
)
@common
@pass_given
def systemd(given: Given, name: str) -> None:
    """Print a unit that runs a worker of this application, from this directory and this Python.

    systemd waits until the worker is ready, restarts it if a loop hangs, and lets it drain. The
    worker gets few rights: open in the unit what your handlers need. The database's address comes
    from /etc/NAME.env.
    """
    from slotwise.contrib.systemd import hidden_paths, unit

    settings = given.registry().settings
    command = Path(sys.executable).with_name("slotwise")
    directory = given.app_dir
    text = unit(
        given.text("app") or settings.app or "",
        name=name,
        command=str(command),
        directory=directory,
        shutdown_grace=settings.shutdown_grace,
    )
    if given.json:
        print_json({"name": f"{name}.service", "unit": text})
    else:
        say_document(text)
    for hidden in hidden_paths(directory, command):
        say(
            f"note: the unit has an empty /tmp and /var/tmp (PrivateTmp, DynamicUser), without "
            f"{hidden}; move it to another directory, such as /opt",
            err=True,
        )


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
