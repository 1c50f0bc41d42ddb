"""Commands of other distributions: found by entry points, listed in their sections, and harmless
when broken.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.docs.markdown import ROOT, blocks

from slotwise.cli.entry import COMMANDS
from slotwise.cli.plugins import GROUP, plugin
from slotwise.cli.shared import exits
from slotwise.cli.shared.options import Given

if TYPE_CHECKING:
    from slotwise.spi import CommandLine

    _KEPT: CommandLine = (
        Given()
    )  # mypy: the command line is what plug-ins are promised

PAGE = ROOT / "docs" / "plugin-commands.md"
PLAIN = """
import click

@click.group()
def shop(): "Commands of the shop."

@shop.command()
@click.pass_obj
def where(line): click.echo(line.settings().database_url)
"""


class Site:
    """A folder of installed distributions, in front of those of this environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, name: str, entries: str, **modules: str) -> None:
        """Write what an installer writes."""
        info = self.folder / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{entries}\n")
        for module, code in modules.items():
            (self.folder / f"{module}.py").write_text(code)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``slotwise`` there, with a database of SQLite."""
        address = f"sqlite:///{self.folder / 'jobs.db'}"
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.folder),
            "SLOTWISE_DATABASE_URL": address,
        }
        return subprocess.run(
            [sys.executable, "-m", "slotwise", *arguments],
            env=environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
        )


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """An empty folder."""
    return Site(tmp_path)


def section(text: str, title: str) -> str:
    """The part of the help under this title."""
    return text.partition(f"\n{title}:\n")[2].partition("\n\n")[0]


def test_the_page_writes_a_command(site: Site) -> None:
    """Its module and its entry point work as they stand there."""
    (code,) = [block.code for block in blocks(PAGE, "python")]
    (toml,) = [block.code for block in blocks(PAGE, "toml")]
    entry = toml.splitlines()[1].replace('"', "")
    site.install("shop-commands", entry, shop_commands=code)
    (site.folder / "jobs.py").write_text(
        "from slotwise import Every, JobRegistry, job\n"
        "@job(name='fails', schedule=Every('1h'))\n"
        "def fails(ctx): 1 / 0\n"
        "registry = JobRegistry(jobs=[fails])\n"
    )
    assert "untried" in section(site.run("--help").stdout, "See")
    lacks = site.run("untried")
    assert (lacks.returncode, lacks.stdout) == (exits.DATABASE, "")
    assert lacks.stderr.startswith("error: ")
    assert site.run("db", "upgrade").returncode == exits.OK
    none = site.run("untried", "--json")
    assert (none.returncode, json.loads(none.stdout)) == (exits.OK, [])
    site.run("run", "fails", "--app", "jobs")
    assert site.run("untried").stdout == "fails\n"
    found = site.run("--json", "untried", "--prefix", "f")
    assert (found.returncode, json.loads(found.stdout)) == (exits.FAILED, ["fails"])


def test_a_plain_group_has_the_common_options(site: Site) -> None:
    """Before the command, after it, and after its subcommand."""
    site.install("shop", "shop = shop_plain:shop", shop_plain=PLAIN)
    assert "shop" in section(site.run("--help").stdout, "Other")
    option = "--database-url=sqlite:///other.db"
    for line in (
        [option, "shop", "where"],
        ["shop", option, "where"],
        ["shop", "where", option],
    ):
        run = site.run(*line)
        assert (run.stdout, run.stderr) == ("sqlite:///other.db\n", "")


def test_a_broken_plugin_costs_a_line(site: Site) -> None:
    """The help lists all others; the command itself says what is wrong."""
    site.install("lost", "lost = lost_module:command")
    site.install("raises", "raises = raising:command", raising="1 / 0")
    site.install("number", "number = a_number:command", a_number="command = 5")
    site.install("shop", "shop = shop_plain:shop", shop_plain=PLAIN)
    help_page = site.run("--help")
    assert help_page.returncode == exits.OK
    assert "shop" in section(help_page.stdout, "Other")
    assert all(name in help_page.stdout for name in COMMANDS)
    assert sorted(help_page.stderr.splitlines()) == [
        "warning: the command lost of lost cannot be loaded: ModuleNotFoundError: No module "
        "named 'lost_module'",
        "warning: the command number of number cannot be loaded: a_number:command is 5; "
        "expected a click command or a PluginCommand",
        "warning: the command raises of raises cannot be loaded: ZeroDivisionError: division by "
        "zero",
    ]
    broken = site.run("raises", "--any", "thing")
    assert broken.returncode == exits.FAILED
    assert broken.stderr == (
        "error: the command raises of raises cannot be loaded: ZeroDivisionError: division by "
        "zero\n"
    )
    assert site.run("db", "upgrade", "--sql").stderr == ""


def test_a_missing_extra_is_named(site: Site) -> None:
    """The entry point says which extra has what the command imports."""
    code = "import a_library_that_nobody_has"
    site.install("shop-tools", "draw = drawing:command [plot]", drawing=code)
    run = site.run("draw")
    assert run.returncode == exits.FAILED
    assert run.stderr == (
        "error: the command draw needs what is not installed (No module named "
        "'a_library_that_nobody_has'); run: pip install 'shop-tools[plot]'\n"
    )
    help_page = site.run("--help")
    assert help_page.stderr == ""
    assert "Needs: pip install 'shop-tools[plot]'" in section(
        help_page.stdout, "Other"
    )


def test_a_plugin_replaces_no_command(site: Site) -> None:
    """Neither one of slotwise, nor that of a distribution before it in the alphabet."""
    code = "import click\n@click.command()\ndef mine(): click.echo('{}')"
    site.install(
        "b-shop", "shop = b_shop:mine\ndb = b_shop:mine", b_shop=code.format("b")
    )
    site.install("a-shop", "shop = a_shop:mine", a_shop=code.format("a"))
    assert site.run("shop").stdout == "a\n"
    assert site.run("db", "upgrade", "--sql").stdout.startswith("BEGIN;")


def test_our_own_are_plugins() -> None:
    """They are declared as those of others are, and each can be loaded."""
    ours = {
        entry.name
        for entry in entry_points(group=GROUP)
        if entry.dist is not None and entry.dist.name == "slotwise"
    }
    assert ours == {
        "alarms",
        "batches",
        "cron-jobs",
        "crontab",
        "dashboard",
        "doctor",
        "events",
        "export",
        "lock-keys",
        "statement",
        "tick",
        "watch",
    }
    assert not ours & COMMANDS.keys()
    assert all(not plugin(name).command.hidden for name in ours)
