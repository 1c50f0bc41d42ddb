"""What the page about crontabs shows and lists is what the code has."""

from __future__ import annotations

import re

import click
import pytest
from tests.docs.markdown import ROOT, blocks, table

from slotwise import Cron
from slotwise.cli.entry import cli
from slotwise.contrib.crontab import parse_crontab, reader
from slotwise.settings.sources import OTHERS_VARIABLES

PAGE = ROOT / "docs" / "crontabs.md"


def test_the_crontab_shown_has_no_problem() -> None:
    (block,) = blocks(PAGE, "crontab")
    found = parse_crontab(block.code)
    assert [problem.text.split()[0] for problem in found.problems] == ["CRON_TZ"]
    assert [entry.stdin is not None for entry in found.entries] == [False, False, True]


def test_every_variable_is_listed() -> None:
    """Those that steer, those that are ignored, and those that a command finds."""
    listed = {
        name
        for cell, _ in table(PAGE, "### Variables with a meaning")
        for name in re.findall(r"\w+", cell)
    }
    assert listed == {
        "SHELL",
        "PATH",
        "HOME",
        "TZ",
        *reader.STEERING,
        *reader.FIXED,
        *reader.IGNORED,
    }
    given = {name for name, _ in table(PAGE, "### CommandJob")}
    assert given == {
        f"SLOTWISE_{word}" for word in ("JOB", "SLOT", "ATTEMPT", "TOKEN", "KEY")
    }
    assert (
        given < OTHERS_VARIABLES
    )  # a command that calls slotwise must not meet them as settings


@pytest.mark.parametrize("macro", Cron.MACROS)
def test_every_macro_is_listed(macro: str) -> None:
    assert f"`{macro}`" in PAGE.read_text()


def test_options_exist() -> None:
    """Those that the page names, of the worker and of the commands; and none of the worker's is
    left out.
    """
    text = PAGE.read_text()
    known = {
        option
        for name in ("worker", "crontab")
        for option in _options(cli.commands[name])
    }
    assert (
        set(re.findall(r"(?<![\w-])--[a-z-]+\w", text)) - {"--quiet", "--all"} <= known
    )
    for option in _options(cli.commands["worker"]):
        assert "crontab" not in option or option in text


def _options(command: click.Command) -> list[str]:
    return [name for parameter in command.params for name in parameter.opts]
