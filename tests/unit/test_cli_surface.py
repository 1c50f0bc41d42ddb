"""How much there is to learn: the commands and options of the command line, which only get fewer,
and the pages that mention them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from tests.docs.markdown import ROOT

from slotwise.cli.entry import cli, status
from slotwise.cli.shared import exits

#: Commands without groups, and options by name. A landing that removes one lowers the bound; new
#: ones may bring them to 48 and 85, and no further: a further feature has an option of its own only
#: where no existing one says the same.
MOST_COMMANDS = 48
MOST_OPTIONS = 85
#: Beyond these bounds: each capability that brought commands of its own, with their words, and with
#: the options that only they take.
BROUGHT_COMMANDS: dict[str, tuple[str, ...]] = {
    "alarms": ("watch", "alarms list", "alarms silence", "alarms test"),
    "a schedule for every customer": ("schedule sync",),
    "on call": ("db restored", "top", "workers stack"),
    "shards": ("shards list", "shards apply"),
    "the doctor": ("doctor",),
    "external clocks": ("tick",),
    "the statement of a month": ("statement",),
    "batches": ("batches list", "batches retry", "batches drop"),
    "events": ("events list", "events show", "events retry", "events lag"),
}
BROUGHT_OPTIONS: dict[str, tuple[str, ...]] = {
    "external clocks": ("--budget", "--every", "--listen"),
    "shards": ("--shard",),
    "pauses that end by themselves": ("--until",),
    "the statement of a month": ("--csv", "--html"),
    "a schedule for every customer": (
        "--scope",
        "--tag",
        "--prefix",
        "--failing",
        "--stale",
    ),
}
#: Said between processes of one worker, or by a shell for its own use.
UNDOCUMENTED = {"--born", "--lifeline", "--report", "--help"}


def commands(
    command: click.Command = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, click.Command]]:
    """Yield each command that a person can type, with its words."""
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    with click.Context(command) as context:
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                yield from commands(found, (*path, name))


def options() -> set[str]:
    return {
        name
        for command in (cli, *(found for _, found in commands()))
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden
        for name in option.opts
        if name.startswith("--")
    }


def pages() -> str:
    texts = [path.read_text() for path in (ROOT / "docs").glob("*.md")]
    return "\n".join([(ROOT / "README.md").read_text(), *texts])


def test_the_surface_only_shrinks() -> None:
    """A further command or option takes the place of another one, or a capability brought it."""
    brought = {words for found in BROUGHT_COMMANDS.values() for words in found}
    brought_options = {name for found in BROUGHT_OPTIONS.values() for name in found}
    known = {words for words, _ in commands()}
    assert brought <= known
    assert brought_options <= options()
    assert len(known - brought) <= MOST_COMMANDS
    assert len(options() - brought_options) <= MOST_OPTIONS


def test_a_page_mentions_each_command() -> None:
    """By its last word, after the name of its group."""
    text = pages()
    missing = []
    for words, _ in commands():
        group, _, last = words.rpartition(" ")
        lines = [
            line for line in text.splitlines() if not group or f"{group} " in line
        ]
        if not any(re.search(rf"(?<![\w-]){last}(?![\w-])", line) for line in lines):
            missing.append(words)
    assert missing == []


def test_a_page_mentions_each_option() -> None:
    """Or the setting of the same name."""
    text = pages()
    missing = [
        name
        for name in sorted(options() - UNDOCUMENTED)
        if not re.search(rf"{name}(?![\w-])", text)
        and f"`{name[2:].replace('-', '_')}`" not in text
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("words", "default"),
    [
        (["db"], "check"),
        (["workers"], "list"),
        (["tasks"], "list --count"),
        (["calendar", "--json"], "show"),
        (["schedule"], "next"),
    ],
)
def test_a_group_alone_shows_what_is_there(
    sqlite_url: str, capsys: pytest.CaptureFixture[str], words: list[str], default: str
) -> None:
    """As its default command does; also with options that are flags."""
    where = ["--database-url", sqlite_url]
    told = []
    for arguments in (words, [*words, *default.split()]):
        assert status([*where, *arguments]) == exits.OK
        told.append(capsys.readouterr().out)
    assert told[0] == told[1] != ""


def test_a_group_alone_takes_the_options_of_its_default(
    sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With their values, before or after the common ones."""
    where = ["--database-url", sqlite_url]
    for words in (["workers", "-n", "5"], ["workers", *where, "--json"]):
        assert status([*where, *words]) == exits.OK, capsys.readouterr().err
    assert status([*where, "workers", "--nonsense"]) == exits.USAGE
    assert "No such option '--nonsense'" in capsys.readouterr().err


def test_a_group_still_helps(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["db", "--help"]) == exits.OK
    assert "upgrade" in capsys.readouterr().out
