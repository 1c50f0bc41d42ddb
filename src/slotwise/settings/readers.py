"""Readers: each validates the value of a setting, from whatever source, or raises InvalidSetting
with the cure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, TypeAlias

from slotwise.errors import ConfigurationError, InvalidSetting
from slotwise.model.durations import format_duration, parse_duration
from slotwise.model.error_text import hide_password
from slotwise.model.records import is_whole

Reader: TypeAlias = Callable[
    [str, Any], Any
]  # (label of the source, value) -> value; raises InvalidSetting

_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]*")
_WORDS_FOR_TRUE = frozenset({"1", "true", "yes", "on"})
_WORDS_FOR_FALSE = frozenset({"0", "false", "no", "off"})


def spell(value: object) -> str:
    return (
        format_duration(value)
        if isinstance(value, timedelta)
        else hide_password(repr(value))
    )


def _wrong(label: str, need: str, value: object, cure: str) -> InvalidSetting:
    return InvalidSetting(f"{label} must be {need}, but was {spell(value)}; {cure}")


def optional(read: Reader) -> Reader:
    return lambda label, value: None if value is None else read(label, value)


def duration(least: str, most: str, why: str) -> Reader:
    """Read a duration between two bounds, both included."""
    low = parse_duration(least)
    high = parse_duration(most)
    form = "write for example 10s, 500ms or PT10S"

    def read(label: str, value: object) -> timedelta:
        try:
            span = parse_duration(value)
        except (ConfigurationError, ValueError, TypeError):
            raise _wrong(label, "a duration", value, form) from None
        if not low <= span <= high:
            bounds = (
                f"positive and at most {most}"
                if least == "1us"
                else f"from {least} to {most}"
            )
            raise _wrong(label, f"{bounds} ({why})", span, form)
        return span

    return read


def whole(least: int, most: int, why: str) -> Reader:
    """Read a whole number between two bounds, both included; also as a decimal string."""

    def read(label: str, value: object) -> int:
        number = value
        if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,18}\s*", value):
            number = int(value)
        if not is_whole(number, least, most):
            raise _wrong(label, f"a whole number from {least} to {most}", value, why)
        return number

    return read


def switch(label: str, value: object) -> bool:
    """Read true or false, or a common word for them."""
    word = (
        str(value).strip().lower()
        if isinstance(value, str | bool) or value in (0, 1)
        else ""
    )
    if word not in _WORDS_FOR_TRUE | _WORDS_FOR_FALSE:
        raise _wrong(label, "true or false", value, "write true or false")
    return word in _WORDS_FOR_TRUE


def choice(*words: str) -> Reader:
    """Read one of these words, in any case."""
    by_fold = {word.casefold(): word for word in words}

    def read(label: str, value: object) -> str:
        word = (
            by_fold.get(value.strip().casefold()) if isinstance(value, str) else None
        )
        if word is None:
            raise _wrong(
                label, f"one of {', '.join(words)}", value, "write one of them"
            )
        return word

    return read


def secret(label: str, value: object) -> str:
    """Read a string that is not blank, and never show it in a message."""
    if not isinstance(value, str) or not value.strip():
        kind = "blank" if isinstance(value, str) else f"of type {type(value).__name__}"
        raise InvalidSetting(
            f"{label} must be a database address, but was {kind}; write "
            "postgresql://user@host/database"
        )
    return value.strip()


def identifier(longest: int) -> Reader:
    """Read a name that PostgreSQL accepts without quotes and without folding."""

    def read(label: str, value: object) -> str:
        if (
            not isinstance(value, str)
            or not _IDENTIFIER.fullmatch(value)
            or len(value) > longest
        ):
            need = f"a lower-case name of at most {longest} characters"
            raise _wrong(
                label, need, value, f"it must match [a-z_][a-z0-9_]{{0,{longest - 1}}}"
            )
        if value.startswith("pg_") or value == "information_schema":
            raise _wrong(
                label,
                "a name that is not PostgreSQL's own",
                value,
                "choose another name",
            )
        return value

    return read


def printable(longest: int) -> Reader:
    """Read a printable string that is not blank."""

    def read(label: str, value: object) -> str:
        text = value.strip() if isinstance(value, str) else ""
        if not text or not text.isprintable() or len(text) > longest:
            # a number of TOML or YAML
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            cure = f'write "{value}"' if is_number else "leave it out for the default"
            raise _wrong(
                label, f"a printable string of 1 to {longest} characters", value, cure
            )
        return text

    return read


def names(longest: int, blanks: bool = True) -> Reader:
    """Read a set of names, with or without blanks in them; a string is split at commas."""
    one = printable(longest)
    cure = "separate them with commas"

    def read(label: str, value: object) -> frozenset[str]:
        if isinstance(value, str):
            value = [part for part in value.split(",") if part.strip()]
        if not isinstance(value, Iterable) or isinstance(value, bytes | dict):
            raise _wrong(label, "a list of names", value, cure)
        found = frozenset(one(label, item) for item in value)
        wrong = [
            word for word in sorted(found) if not blanks and word.split() != [word]
        ]
        if wrong:
            raise _wrong(label, "words without blanks", wrong[0], cure)
        return found

    return read


def pairs(longest: int) -> Reader:
    """Read names with strings: a table, or lines such as ``name = text``."""
    one = printable(longest)
    form = "write a table, or lines such as: nightly-report = 0 3 * * *"

    def read(label: str, value: Any) -> frozenset[tuple[str, str]]:
        given = _lines(value) if isinstance(value, str) else value
        try:
            found = {key: text.strip() for key, text in dict(given).items()}
        except (AttributeError, TypeError, ValueError):
            raise _wrong(label, "names with strings", value, form) from None
        if not all(found.values()):
            raise _wrong(label, "names with strings", value, form)
        return frozenset((one(label, key), text) for key, text in found.items())

    return read


def _lines(text: str) -> list[list[str]]:
    """Split lines at their first equals sign; one without any gives a list of one."""
    lines = [line for line in text.splitlines() if line.strip()]
    return [[part.strip() for part in line.split("=", 1)] for line in lines]


def patterns(label: str, value: object) -> frozenset[str]:
    """Read regular expressions: a list, or one in each line of a string."""
    given = value.splitlines() if isinstance(value, str) else value
    if not isinstance(given, Iterable) or isinstance(given, bytes | Mapping):
        raise _wrong(
            label, "a list of regular expressions", value, "write one in each line"
        )
    found = frozenset(one for one in given if not isinstance(one, str) or one.strip())
    for one in found:
        try:
            re.compile(one)
        except (re.error, TypeError) as error:
            raise _wrong(
                label, "a list of regular expressions", one, f"correct it: {error}"
            ) from None
    return found
