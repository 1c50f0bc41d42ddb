"""What a program that imports slotwise, and a look at the help, may load: both are waited for."""

from __future__ import annotations

import subprocess
import sys

import click

from slotwise.cli.entry import COMMANDS, OWN_PLUGINS, SECTIONS, cli
from slotwise.cli.plugins import plugin, plugins

#: Prints what was loaded: of slotwise the modules, of everything else the packages.
_LOADED = """
import sys
before = set(sys.modules)
{code}
loaded = set(sys.modules) - before
print()
print(*sorted(name for name in loaded if name.startswith("slotwise")))
print(*sorted({{name.partition(".")[0] for name in loaded}} - {{"slotwise"}}))
"""
#: Standard modules that take milliseconds, and that neither needs.
_SLOW = {
    "asyncio",
    "email",
    "hashlib",
    "multiprocessing",
    "ssl",
    "subprocess",
    "zipfile",
}


def loaded(code: str) -> tuple[set[str], set[str], set[str]]:
    """Return the modules of slotwise, the other distributions, and the standard modules."""
    done = subprocess.run(
        [sys.executable, "-c", _LOADED.format(code=code)],
        capture_output=True,
        text=True,
        check=True,
    )
    own, others = (set(line.split()) for line in done.stdout.splitlines()[-2:])
    standard = others & sys.stdlib_module_names
    # Names with an underscore are parts of the interpreter, such as the data of sysconfig.
    distributions = {name for name in others - standard if not name.startswith("_")}
    return own, distributions, standard


def test_the_package_loads_its_errors_only() -> None:
    """All other names are loaded when they are first used."""
    own, others, _ = loaded("import slotwise")
    assert own == {
        "slotwise",
        "slotwise.errors",
        "slotwise.model",
        "slotwise.model.exports",
    }
    assert others == set()


def test_declarations_load_no_engine() -> None:
    """Settings, SQLAlchemy, the client and the engine are loaded when they are first used."""
    own, others, standard = loaded("from slotwise import Every, Retry, job")
    rooms = {name.split(".")[1] for name in own - {"slotwise"}}
    assert rooms == {"errors", "jobs", "model", "payload", "schedules"}
    assert others == {"tenacity", "typing_extensions"}
    assert standard & (_SLOW | {"urllib"}) == set()


def test_the_help_loads_no_command() -> None:
    """Its lines are in a table, so that it loads neither the commands nor what they need."""
    own, others, standard = loaded(
        "from slotwise.cli.entry import status; status(['--help'])"
    )
    commands = {name for name in own if name.startswith("slotwise.cli.")}
    shared = {
        "shared",
        "shared.exits",
        "shared.given",
        "shared.options",
        "shared.shards",
        "shared.terminal",
    }
    expected = {f"slotwise.cli.{name}" for name in {"entry", "plugins"} | shared}
    assert commands == expected
    assert "slotwise.model.events" not in own
    assert others == {"click"}
    assert standard & {"asyncio", "hashlib", "multiprocessing", "ssl"} == set()


def test_a_worker_loads_no_tables() -> None:
    """What is printed in columns brings rich, which takes some MiB; a worker prints none."""
    _, others, _ = loaded(
        "from slotwise.cli.entry import status; status(['worker', '--help'])"
    )
    assert "rich" not in others
    assert "alembic" not in others


def test_the_help_has_the_line_of_each_command() -> None:
    assert isinstance(cli, click.Group)
    lines = {
        name: line
        for section in SECTIONS.values()
        for name, (_, line) in section.items()
    }
    assert lines == {
        name: cli.commands[name].get_short_help_str(200) for name in COMMANDS
    }
    of_plugins = {
        entry.value: (found.section, found.command.get_short_help_str(200))
        for name, entry in plugins().items()
        if entry.value.startswith("slotwise.") and (found := plugin(name))
    }
    assert of_plugins == {value: own[:2] for value, own in OWN_PLUGINS.items()}
