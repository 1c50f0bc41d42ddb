"""Readers: each turns what a source gave into the value of one setting, or says what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, TypeAlias

from slotwise.errors import ConfigurationError, InvalidSetting
from slotwise.model.durations import format_duration, parse_duration
from slotwise.model.redaction import hide_password

Reader: TypeAlias = Callable[[str, Any], Any]  # (label of the source, value) -> value; raises InvalidSetting

_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]*")
_WORDS_FOR_TRUE = frozenset({"1", "true", "yes", "on"})
_WORDS_FOR_FALSE = frozenset({"0", "false", "no", "off"})


def spell(value: object) -> str:
    """A value as it stands in a message."""
    return format_duration(value) if isinstance(value, timedelta) else hide_password(repr(value))


def _wrong(label: str, need: str, value: object, cure: str) -> InvalidSetting:
    return InvalidSetting(f"{label} must be {need}, but was {spell(value)}; {cure}")


def optional(read: Reader) -> Reader:
    """None, or what the reader reads."""
    return lambda label, value: None if value is None else read(label, value)


def duration(least: str, most: str, why: str) -> Reader:
    """A duration between two bounds, both included."""
    low, high = parse_duration(least), parse_duration(most)
    form = "write for example 10s, 500ms or PT10S"

    def read(label: str, value: Any) -> timedelta:
        try:
            span = parse_duration(value)
        except (ConfigurationError, ValueError, TypeError):
            raise _wrong(label, "a duration", value, form) from None
        if not low <= span <= high:
            bounds = f"positive and at most {most}" if least == "1us" else f"from {least} to {most}"
            raise _wrong(label, f"{bounds} ({why})", span, form)
        return span

    return read


def whole(least: int, most: int, why: str) -> Reader:
    """A whole number between two bounds, both included; its decimal text too."""

    def read(label: str, value: Any) -> int:
        number = value
        if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,18}\s*", value):
            number = int(value)
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
            raise _wrong(label, f"a whole number from {least} to {most}", value, why)
        return number

    return read


def switch() -> Reader:
    """True or false, or a common word for them."""

    def read(label: str, value: Any) -> bool:
        word = str(value).strip().lower() if isinstance(value, str | bool) or value in (0, 1) else ""
        if word not in _WORDS_FOR_TRUE | _WORDS_FOR_FALSE:
            raise _wrong(label, "true or false", value, "write true or false")
        return word in _WORDS_FOR_TRUE

    return read


def choice(*words: str) -> Reader:
    """One of some words, in any case."""
    by_fold = {word.casefold(): word for word in words}

    def read(label: str, value: Any) -> str:
        word = by_fold.get(value.strip().casefold()) if isinstance(value, str) else None
        if word is None:
            raise _wrong(label, f"one of {', '.join(words)}", value, "write one of them")
        return word

    return read


def secret() -> Reader:
    """A text that is not blank and never repeated in a message."""

    def read(label: str, value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            kind = "blank" if isinstance(value, str) else f"of type {type(value).__name__}"
            raise InvalidSetting(
                f"{label} must be a database address, but was {kind}; write postgresql://user@host/database"
            )
        return value.strip()

    return read


def identifier(longest: int) -> Reader:
    """A name that PostgreSQL takes without quotes and without folding."""

    def read(label: str, value: Any) -> str:
        if not isinstance(value, str) or not _IDENTIFIER.fullmatch(value) or len(value) > longest:
            need = f"a lower-case name of at most {longest} characters"
            raise _wrong(label, need, value, f"it must match [a-z_][a-z0-9_]{{0,{longest - 1}}}")
        if value.startswith("pg_") or value == "information_schema":
            raise _wrong(label, "a name that is not PostgreSQL's own", value, "choose another name")
        return value

    return read


def name(longest: int) -> Reader:
    """A printable text, not blank."""

    def read(label: str, value: Any) -> str:
        text = value.strip() if isinstance(value, str) else ""
        if not text or not text.isprintable() or len(text) > longest:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)  # TOML's or YAML's
            cure = f'write "{value}"' if is_number else "leave it out for the default"
            raise _wrong(label, f"a printable text of 1 to {longest} characters", value, cure)
        return text

    return read


def names(longest: int) -> Reader:
    """A set of names; a text is split at commas."""
    one = name(longest)

    def read(label: str, value: Any) -> frozenset[str]:
        if isinstance(value, str):
            value = [part for part in value.split(",") if part.strip()]
        if not isinstance(value, Iterable) or isinstance(value, bytes | dict):
            raise _wrong(label, "a list of names", value, "separate them with commas")
        return frozenset(one(label, item) for item in value)

    return read


def words(longest: int) -> Reader:
    """As ``names``, and without blanks."""
    some = names(longest)

    def read(label: str, value: Any) -> frozenset[str]:
        found: frozenset[str] = some(label, value)
        for word in sorted(found):
            if word.split() != [word]:
                raise _wrong(label, "words without blanks", word, "separate them with commas")
        return found

    return read


def pairs(longest: int) -> Reader:
    """Names, each with a text: a table, or lines such as ``name = text``."""
    one, form = name(longest), "write a table, or lines such as: nightly-report = 0 3 * * *"

    def read(label: str, value: Any) -> frozenset[tuple[str, str]]:
        given = _lines(value) if isinstance(value, str) else value
        try:
            found = {key: text.strip() for key, text in (given.items() if isinstance(given, Mapping) else given)}
        except (AttributeError, TypeError, ValueError):
            raise _wrong(label, "names with texts", value, form) from None
        if not all(found.values()):
            raise _wrong(label, "names with texts", value, form)
        return frozenset((one(label, key), text) for key, text in found.items())

    return read


def _lines(text: str) -> list[list[str]]:
    """The lines at their first equals sign; one without is a list of one."""
    return [[part.strip() for part in line.split("=", 1)] for line in text.splitlines() if line.strip()]


#: The reader, and with it the range, of every setting. PostgreSQL's longest name has 63 bytes; what follows
#: the prefix (tables, their indexes) needs up to 31 of them.
READERS: Final[Mapping[str, Reader]] = {
    "database_url": optional(secret()),
    "schema": optional(identifier(63)),
    "table_prefix": identifier(32),
    "poll_interval": duration("1us", "1d", "a zero interval would spin"),
    "heartbeat_interval": duration("20ms", "1h", "each heartbeat is one statement"),
    "missed_heartbeats_limit": whole(3, 1000, "fewer would take live claims away at the first hiccup"),
    "shutdown_grace": duration("0s", "7d", "zero does not wait"),
    "threads": optional(whole(1, 10_000, "it is how many jobs run at a time")),
    "processes": whole(1, 1000, "one is enough for most"),
    "reaper_interval": optional(duration("20ms", "1h", "each look is one statement")),
    "recovery_rate": optional(whole(1, 1_000_000, "it is how many late slots start in a second")),
    "revision": optional(name(100)),
    "worker_name": optional(name(100)),
    "tags": words(100),
    "only": names(100),
    "schedules": pairs(100),
    "pooler": switch(),
    "wake_up": switch(),
    "wake_up_url": optional(secret()),
    "keep_history": duration("0s", "36500d", "zero keeps everything"),
    "keep_failures": duration("0s", "36500d", "zero keeps everything"),
    "app": optional(name(500)),
    "log_format": choice("human", "json"),
    "log_level": choice("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
    "process_hook": switch(),
}
