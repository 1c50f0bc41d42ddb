"""TOML and YAML files."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

from slotwise.errors import InvalidSetting

#: The largest file, in bytes.
LARGEST_FILE = 1_048_576
_YAML = (".yaml", ".yml")


def read_document(
    path: Path, what: str, cure: str, *, is_named: bool = True
) -> object:
    """Return the content of a TOML or YAML file; an empty one is ``{}``.

    ``what`` names the file in messages, and ``cure`` ends that of a missing one. Raise
    InvalidSetting with the line. A file that was found and not named must belong to this account
    or root, and no other account may write or replace it.
    """
    try:
        data = _content(path, what, cure, is_named)
        text = data.decode("utf-8")
    except FileNotFoundError:
        raise InvalidSetting(f"{path}: there is no such {what}; {cure}") from None
    except OSError as error:
        raise InvalidSetting(
            f"{path}: the {what} cannot be read: {error.strerror}; check its path"
        ) from None
    except UnicodeDecodeError as error:
        raise InvalidSetting(
            f"{path}: byte {error.start} is not UTF-8; save the {what} as UTF-8"
        ) from None
    return _yaml(path, text) if path.suffix in _YAML else _toml(path, text)


def _content(path: Path, what: str, cure: str, is_named: bool) -> bytes:
    # not blocking: whoever opens a FIFO waits for its writer
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(opened)
        if not is_named:
            _refuse_others(path, found)
        if stat.S_ISREG(found.st_mode) and found.st_size <= LARGEST_FILE:
            with open(opened, "rb", closefd=False) as stream:
                return stream.read(LARGEST_FILE)
    finally:
        os.close(opened)
    raise InvalidSetting(
        f"{path}: a {what} is a regular file of at most {LARGEST_FILE} bytes; {cure}"
    )


def _refuse_others(path: Path, found: os.stat_result) -> None:
    """Raise InvalidSetting for a file that another account could have written or replaced."""
    name = f"{path} in this directory"
    folders = path.resolve().parents
    places = [
        (name, path.lstat()),
        (name, found),
        *((str(one), one.stat()) for one in folders),
    ]
    for place, about in places:
        if about.st_uid not in (0, os.geteuid()):
            why = f"belongs to another account (uid {about.st_uid})"
        elif _is_writable(about):
            why = "can be written by other accounts"
        else:
            continue
        raise InvalidSetting(
            f"{place} {why}, which could choose what runs; "
            f"name {path} with --config if you trust it, or go to another directory"
        )


def _is_writable(about: os.stat_result) -> bool:
    """Whether other accounts can write a file, or replace what is in a directory."""
    mode = about.st_mode
    if stat.S_ISLNK(mode) or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
        return False
    is_our_group = about.st_gid in (0, os.getegid())
    return bool(mode & stat.S_IWOTH or (mode & stat.S_IWGRP and not is_our_group))


def _toml(path: Path, text: str) -> object:
    import tomllib  # late: most processes have no such file

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"line (\d+)", str(error))
        is_twice = re.search("overwrite|twice|mutate", str(error)) is not None
        raise _unread(
            path, text, "TOML", None if at is None else int(at[1]), is_twice=is_twice
        ) from None


def _unread(
    path: Path, text: str, form: str, line: int | None, *, is_twice: bool = False
) -> InvalidSetting:
    """The error for a line, counted from 1; None is the last one. Its value is not shown: it may
    be a password.

    So a line that begins with no name is not quoted, as it may be a part of a value.
    """
    lines = text.splitlines() or [""]
    number = min(line or len(lines), len(lines))
    why = (
        "has a name that is there twice; keep one of them"
        if is_twice
        else f"is not {form}; correct this line"
    )
    found = re.match(r"\s*([A-Za-z][\w .-]{0,58}?)\s*[=:](?!//)", lines[number - 1])
    return InvalidSetting(
        f"{path}:{number}: {repr(found[1]) if found else 'this line'} {why}"
    )


def _yaml(path: Path, text: str) -> object:
    try:
        import yaml
    except ImportError:
        raise InvalidSetting(
            f"{path}: this needs PyYAML; run: pip install 'slotwise[yaml]', or write TOML"
        ) from None

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def compose_mapping_node(self, anchor: Any) -> Any:
            """Refuse a name that is there twice: yaml's own loader silently uses the last one."""
            node = super().compose_mapping_node(anchor)
            names = [str(key.value) for key, _ in node.value]
            if twice := {name for name in names if names.count(name) > 1}:
                raise InvalidSetting(
                    f"{path}: {min(twice)} is there twice; keep one of them"
                )
            return node

    try:
        content = Loader(text).get_single_data()
    except (
        yaml.YAMLError,
        ValueError,
    ) as error:  # ValueError: a date that does not exist
        mark = getattr(error, "problem_mark", None)
        raise _unread(
            path, text, "YAML", None if mark is None else mark.line + 1
        ) from None
    return {} if content is None else content
