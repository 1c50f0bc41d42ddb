"""The recipes of the page on ticks: manifests are valid, and commands exist as they are written."""

from __future__ import annotations

import configparser
import shlex

import click
import kubernetes_validate
import yaml
from kubernetes_validate.utils import all_versions
from tests.docs.markdown import ROOT, blocks

from slotwise.cli.tick import command

PAGE = ROOT / "docs" / "ticks.md"


def parsed(words: list[str]) -> None:
    """Raises if ``slotwise tick`` does not take these words."""
    with click.Context(command, info_name="tick") as context:
        command.parse_args(context, words)


def test_the_cron_job_is_valid() -> None:
    """By the schema of Kubernetes; its time limit is longer than the tick's and its drain's."""
    (block,) = blocks(PAGE, "yaml")
    manifest = yaml.safe_load(block.code)
    kubernetes_validate.validate(manifest, all_versions()[-1], strict=True)
    job = manifest["spec"]["jobTemplate"]["spec"]
    words = job["template"]["spec"]["containers"][0]["command"]
    assert words[:2] == ["slotwise", "tick"]
    parsed(words[2:])
    budget = int(words[words.index("--budget") + 1].removesuffix("s"))
    assert job["activeDeadlineSeconds"] >= budget + 30 + 20


def test_the_units_of_systemd_start_a_tick() -> None:
    """They have their sections, and the command is one that exists."""
    service, timer = (configparser.ConfigParser(interpolation=None) for _ in range(2))
    for block, unit in zip(blocks(PAGE, "ini"), (service, timer), strict=True):
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read_string(block.code)
    words = shlex.split(service["Service"]["ExecStart"])
    assert words[0].endswith("/slotwise")
    assert words[1] == "tick"
    parsed(words[2:])
    assert service["Service"]["Type"] == "oneshot"
    assert int(service["Service"]["TimeoutStartSec"]) >= 50 + 30 + 20
    assert timer["Timer"]["OnCalendar"] == "*:0/5"
    assert set(timer) == {"DEFAULT", "Unit", "Timer", "Install"}
