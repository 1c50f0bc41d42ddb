"""Sources of settings: a TOML or YAML file, the environment, keywords. Each gives name → (label, value)."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from slotwise.errors import InvalidSetting

Layer: TypeAlias = dict[str, tuple[str, object]]

PREFIX = "SLOTWISE_"
DEFAULT_FILES = ("slotwise.toml", "slotwise.yaml")
_YAML = (".yaml", ".yml")

# Variables that start like settings and are not: they say where things are, before there are settings, or
# belong to the quick start's database, the test suite and the worker command's own children; or tell a command
# which slot it runs for, which may call slotwise itself.
OTHERS_VARIABLES = frozenset(
    {
        "SLOTWISE_CONFIG",
        "SLOTWISE_APP_DIR",
        "SLOTWISE_AUTHOR",
        "SLOTWISE_BOOT",
        "SLOTWISE_PG_BINDIR",
        "SLOTWISE_TEST_DSN",
        "SLOTWISE_JOB",
        "SLOTWISE_SLOT",
        "SLOTWISE_ATTEMPT",
        "SLOTWISE_TOKEN",
        "SLOTWISE_KEY",
    }
)


def from_file(config: Path | None, environ: Mapping[str, str], known: Collection[str]) -> Layer:
    """The settings of the file; empty where none was named and neither of the defaults is there."""
    named = config or environ.get("SLOTWISE_CONFIG")
    there = [Path(named)] if named else [path for path in map(Path, DEFAULT_FILES) if path.is_file()]
    if not there:
        return {}
    if len(there) > 1:
        raise InvalidSetting(f"{' and '.join(DEFAULT_FILES)} are both there; keep one, or name it with --config")
    (path,) = there
    return _layer(_table(path).items(), known, lambda key: f"{path.name}: {key}", _kebab)


def place(name: str, value: object, readers: Mapping[str, Callable[[str, Any], object]]) -> str | None:
    """The variable, or else the file, that says this of a setting; None: neither does."""
    for layer in (from_environment(os.environ, readers), from_file(None, os.environ, readers)):
        if name in layer:
            label, given = layer[name]
            return label if readers[name](label, given) == value else None
    return None


def from_environment(environ: Mapping[str, str], known: Collection[str]) -> Layer:
    """The settings of the environment; `DATABASE_URL` where `SLOTWISE_DATABASE_URL` is not set."""
    ours = (
        (variable.removeprefix(PREFIX), text)
        for variable, text in environ.items()
        if variable.startswith(PREFIX) and variable not in OTHERS_VARIABLES and text.strip()
    )
    layer = _layer(ours, known, lambda key: PREFIX + key, lambda name: PREFIX + name.upper())
    if environ.get("DATABASE_URL", "").strip():
        layer.setdefault("database_url", ("DATABASE_URL", environ["DATABASE_URL"]))
    return layer


def from_keywords(keywords: Mapping[str, object], known: Collection[str]) -> Layer:
    """The settings given by keyword."""
    return _layer(keywords.items(), known, str, str)


def _layer(
    pairs: Iterable[tuple[str, object]],
    known: Collection[str],
    label: Callable[[str], str],
    spell: Callable[[str], str],
) -> Layer:
    by_fold = {_fold(name): name for name in known}
    layer: Layer = {}
    for key, value in pairs:
        name = by_fold.get(_fold(key))
        if name is None:
            raise _unknown(key, by_fold, label, spell)
        if name in layer:
            raise InvalidSetting(f"{label(key)} is the same setting as {layer[name][0]}; keep one of them")
        layer[name] = (label(key), value)
    return layer


def _unknown(
    key: str, by_fold: Mapping[str, str], label: Callable[[str], str], spell: Callable[[str], str]
) -> InvalidSetting:
    near = difflib.get_close_matches(_fold(key), by_fold, n=1, cutoff=0.5)
    cure = f"did you mean {spell(by_fold[near[0]])}?" if near else f"known are {', '.join(by_fold.values())}"
    return InvalidSetting(f"{label(key)} is not a setting; {cure}")


def _table(path: Path) -> dict[str, Any]:
    import tomllib  # late: most processes have no such file

    try:
        text = path.read_text(encoding="utf-8")
        content = _yaml(path, text) if path.suffix in _YAML else tomllib.loads(text)
    except FileNotFoundError:
        raise InvalidSetting(f"{path}: there is no such settings file; correct --config or SLOTWISE_CONFIG") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidSetting(f"{path}: the settings file cannot be read: {error}") from None
    if path.name != "pyproject.toml":
        return content
    table = content.get("tool", {}).get("slotwise")
    if not isinstance(table, dict):
        raise InvalidSetting(f"{path}: there is no table [tool.slotwise]; add it, or name another file")
    return table


def _yaml(path: Path, text: str) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise InvalidSetting(f"{path}: this needs PyYAML; run: pip install 'slotwise[yaml]', or write TOML") from None
    try:
        content, tree = yaml.safe_load(text), yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise InvalidSetting(f"{path}: the settings file cannot be read: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise InvalidSetting(f"{path}: settings are names with values; write for example poll-interval: 10s")
    keys = [key.value for key, _ in tree.value]  # the reader itself lets the last of several win
    if twice := {key for key in keys if keys.count(key) > 1}:
        raise InvalidSetting(f"{path}: {min(twice)} is there twice; keep one of them")
    return content


def _fold(key: str) -> str:
    return key.replace("-", "").replace("_", "").casefold()


def _kebab(name: str) -> str:
    return name.replace("_", "-")
