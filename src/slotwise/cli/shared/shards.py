"""Which shard a command is about: the chosen one, each in turn, or the default."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from slotwise.cli.shared import exits
from slotwise.cli.shared.terminal import say, say_json

if TYPE_CHECKING:
    from slotwise.contrib.shards import Shards

VARIABLE: Final = "SLOTWISE_SHARD"
#: The commands that run on each shard unless one is chosen.
ON_EACH: Final = frozenset(
    {
        "audit",
        "backfill",
        "calendar",
        "cancel",
        "db",
        "delete",
        "doctor",
        "explain",
        "failures",
        "health",
        "jobs",
        "pause",
        "plan",
        "resume",
        "retry",
        "skip-next",
        "slots",
        "tasks",
        "trigger",
        "workers",
    }
)
#: Options without a value, before a command.
_FLAGS: Final = frozenset({"--json", "--help", "-h", "--version"})
#: Options of a command line that is about one place, or about none.
_ONE: Final = frozenset({"--shard", "--database-url", "--help", "-h", "--sql"})
#: Statuses of several shards become the first of these.
_WORST: Final = (
    exits.BUG,
    exits.INTERRUPTED,
    exits.DATABASE,
    exits.USAGE,
    exits.FAILED,
    exits.UNFINISHED,
    exits.CHANGES,
)

#: Runs a command line; returns its status. Errors about unknown names go into the list.
Run = Callable[[Sequence[str], list[str]], int]


def configured_shards(config: str | None) -> Shards | None:
    """Return the shards of the settings file; None if it has none. Raises InvalidSetting or
    ConfigurationError.
    """
    named = config or os.environ.get("SLOTWISE_CONFIG")
    files = [named] if named else ["slotwise.toml", "slotwise.yaml"]
    if not any(_mentions_shards(Path(one)) for one in files):
        return None
    from slotwise.contrib.shards import Shards  # late: it brings the engine

    return Shards.load(Path(config) if config else None)


def _mentions_shards(path: Path) -> bool:
    try:
        return path.is_file() and b"shard" in path.read_bytes()
    except OSError:
        return False  # the settings report it


def shards_to_walk(arguments: Sequence[str]) -> list[str]:
    """Return the names of all shards if this command line is about each of them, else none.

    Raises what ``configured_shards`` raises.
    """
    before, command, after = _split(arguments)
    words = [*before, *after]
    options = {word.partition("=")[0] for word in words}
    is_one = command == "tasks" and "schedule" in after
    if command not in ON_EACH or is_one or options & _ONE or os.environ.get(VARIABLE):
        return []
    found = configured_shards(_value_of("--config", words))
    return [] if found is None or len(found) < 2 else [one.name for one in found]


def _split(arguments: Sequence[str]) -> tuple[list[str], str, list[str]]:
    """Return what stands before the command, the command, and the rest."""
    place = 0
    while place < len(arguments) and arguments[place].startswith("-"):
        word = arguments[place]
        has_value = "=" not in word and word not in _FLAGS
        place += 2 if has_value else 1
    if place >= len(arguments):
        return list(arguments), "", []
    return list(arguments[:place]), arguments[place], list(arguments[place + 1 :])


def _value_of(option: str, words: Sequence[str]) -> str | None:
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == option and equals:
            return value
        if name == option and place + 1 < len(words):
            return words[place + 1]
    return None


def run_on_each(names: Iterable[str], arguments: Sequence[str], run: Run) -> int:
    """Run a command line on each shard, with the shard named; return the worst status.

    An error of one shard is reported, and the others go on. A job that some shards do not have is
    an error only if none has it. JSON is one array, whose objects have the key ``shard``.
    """
    statuses: list[int] = []
    unknown: dict[str, str] = {}
    documents: list[object] = []
    as_json = "--json" in arguments
    for name in names:
        problems: list[str] = []
        if as_json:
            with contextlib.redirect_stdout(io.StringIO()) as told:
                status = run(["--shard", name, *arguments], problems)
            documents.extend(_of_shard(name, told.getvalue()))
        else:
            say(f"shard {name}:")
            status = run(["--shard", name, *arguments], problems)
        if problems:
            unknown[name] = problems[0]
        else:
            statuses.append(status)
    for name, problem in unknown.items():
        kind = "" if statuses else "error: "
        say(f"{kind}shard {name}: {problem}", err=True)
    if as_json:
        say_json(json.dumps(documents, indent=1))
    if not statuses:
        return exits.FAILED
    return next((one for one in _WORST if one in statuses), max(statuses))


def _of_shard(name: str, text: str) -> list[object]:
    """Return the documents of one shard's output, each with the shard's name."""
    if not text.strip():
        return []
    try:
        found = json.loads(text)
    except ValueError:
        return [{"shard": name, "text": text}]
    lines = found if isinstance(found, list) else [found]
    return [
        {"shard": name, **line} if isinstance(line, dict) else line for line in lines
    ]
