"""Where settings come from: files, the environment, keywords; in any spelling. An entry point reads
the words of db-scheduler.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from slotwise.errors import InvalidSetting
from slotwise.model.error_text import hide_password
from slotwise.model.plugged_in import plugged_in
from slotwise.settings.documents import read_document
from slotwise.settings.keywords import SettingsKeywords

#: Settings by name, each with the label of its source in messages.
Layer: TypeAlias = dict[str, tuple[str, object]]

PREFIX = "SLOTWISE_"
DEFAULT_FILES = ("slotwise.toml", "slotwise.yaml")

#: Variables that begin like settings and are none: they are read before there are settings, belong
#: to the quick start's database, to the test suite or to the worker's own children, or tell a
#: command for which slot it runs.
OTHERS_VARIABLES = frozenset(
    PREFIX + name
    for name in (
        "CONFIG",
        "APP_DIR",
        "AUTHOR",
        "BOOT",
        "PG_BINDIR",
        "TEST_DSN",
        "JOB",
        "SLOT",
        "ATTEMPT",
        "TOKEN",
        "KEY",
        "HTTP",
        "ALIVE_FILE",
        "STUCK_AFTER",
        "METRICS_MAX_NAMES",
        "DASHBOARD_SECRET",
        "TICK_SECRET",
        "ALARMS",
        "SHARD",
    )
)


#: Tables of the settings file that integrations read by themselves.
OTHERS_TABLES: Final = frozenset({"shards", "sharding"})


def from_file(config: Path | None, environ: Mapping[str, str]) -> Layer:
    """Return the settings of the file; empty if none was named and no default file exists."""
    named = config or environ.get("SLOTWISE_CONFIG")
    there = (
        [Path(named)]
        if named
        else [Path(one) for one in DEFAULT_FILES if Path(one).is_file()]
    )
    if not there:
        return {}
    if len(there) > 1:
        raise InvalidSetting(
            f"{' and '.join(DEFAULT_FILES)} are both there; keep one, or name it with --config"
        )
    (path,) = there
    found = _table(path, is_named=bool(named)).items()
    return layer(
        [(key, value) for key, value in found if key not in OTHERS_TABLES],
        lambda key: f"{path.name}: {key}",
        lambda name: name.replace("_", "-"),
    )


def _table(path: Path, *, is_named: bool) -> Mapping[str, object]:
    content = read_document(
        path, "settings file", "correct --config or SLOTWISE_CONFIG", is_named=is_named
    )
    if not isinstance(content, dict) or not all(
        isinstance(key, str) for key in content
    ):
        raise InvalidSetting(
            f"{path}: settings are names with values; write for example poll-interval: 10s"
        )
    if path.name != "pyproject.toml":
        return content
    tool = content.get("tool")
    table = tool.get("slotwise") if isinstance(tool, dict) else None
    if not isinstance(table, dict):
        raise InvalidSetting(
            f"{path}: there is no table [tool.slotwise]; add it, or name another file"
        )
    return table


def from_environment(environ: Mapping[str, str]) -> Layer:
    """Return the settings of the environment; `DATABASE_URL` where `SLOTWISE_DATABASE_URL` is not
    set.
    """
    ours = (
        (variable.removeprefix(PREFIX), text)
        for variable, text in environ.items()
        if variable.startswith(PREFIX)
        and variable not in OTHERS_VARIABLES
        and text.strip()
    )
    found = layer(ours, lambda key: PREFIX + key, lambda name: PREFIX + name.upper())
    if environ.get("DATABASE_URL", "").strip():
        found.setdefault("database_url", ("DATABASE_URL", environ["DATABASE_URL"]))
    return found


def _fold(key: str) -> str:
    return key.replace("-", "").replace("_", "").casefold()


_NAMES: Final = {_fold(name): name for name in SettingsKeywords.__annotations__}


def layer(
    pairs: Iterable[tuple[str, object]],
    label: Callable[[str], str] = str,
    spell: Callable[[str], str] = str,
) -> Layer:
    """Return the settings of these pairs; ``label`` and ``spell`` give a key's and a setting's
    name in messages.
    """
    found: Layer = {}
    given = list(pairs)
    words: Iterable[tuple[str, str, object]] = [
        (key, key, value) for key, value in given
    ]
    if not all(_fold(key) in _NAMES for key, _ in given):
        words = plugged_in("slotwise.settings_words", "db-scheduler")(given, label)
    for key, word, value in words:
        folded = _fold(word)
        name = _NAMES.get(folded)
        if name is None:
            near = difflib.get_close_matches(folded, _NAMES, n=1, cutoff=0.5)
            cure = (
                f"did you mean {spell(_NAMES[near[0]])}?"
                if near
                else f"known are {_KNOWN}"
            )
            raise InvalidSetting(f"{_shown(label(key))} is not a setting; {cure}")
        if name in found:
            raise InvalidSetting(
                f"{label(key)} is the same setting as {found[name][0]}; keep one of them"
            )
        found[name] = (label(key), value)
    return found


_KNOWN = ", ".join(_NAMES.values())


def _shown(key: str) -> str:
    """Return a key for a message: it may be an address that lost its name."""
    return f"{hide_password(key):.100}"
