"""Alarms from a file: ``alarms.toml``, or what ``SLOTWISE_ALARMS`` names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from slotwise import InvalidSetting
from slotwise.contrib.alarms.rules import Rules, rules_from
from slotwise.contrib.alarms.targets import Email, Slack, Target, Webhook, secret_of
from slotwise.spi import read_document

VARIABLE: Final = "SLOTWISE_ALARMS"
DEFAULT_FILES: Final = ("alarms.toml", "alarms.yaml")
_TABLES: Final = ("every", "rules", "jobs", "targets")


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What a file says."""

    targets: tuple[Target, ...] = ()
    rules: Rules = field(default_factory=Rules)
    by_name: Mapping[str, Rules] = field(default_factory=dict)
    every: str = "15s"


def configuration() -> Configuration:
    """Read the file of alarms; without one, there are no targets, and the usual rules.

    Raises InvalidSetting.
    """
    named = os.environ.get(VARIABLE, "").strip()
    there = [Path(named)] if named else [Path(one) for one in DEFAULT_FILES]
    found = [path for path in there if named or path.is_file()]
    if len(found) > 1:
        raise InvalidSetting(
            f"{' and '.join(DEFAULT_FILES)} are both there; keep one, or name it with {VARIABLE}"
        )
    return read(found[0], is_named=bool(named)) if found else Configuration()


def read(path: Path, *, is_named: bool = True) -> Configuration:
    """Read a file of alarms. Raises InvalidSetting."""
    content = read_document(
        path, "file of alarms", f"correct {VARIABLE}", is_named=is_named
    )
    table = _table(content, path.name)
    _refuse_others(table, path.name)
    usual = rules_from(_table(table.get("rules", {}), f"{path.name}: rules"), "rules")
    jobs = _table(table.get("jobs", {}), f"{path.name}: jobs")
    targets = _table(table.get("targets", {}), f"{path.name}: targets")
    return Configuration(
        every=_every(table, path.name),
        rules=usual,
        by_name={
            name: rules_from(_table(one, f"jobs.{name}"), f"jobs.{name}", usual)
            for name, one in jobs.items()
        },
        targets=tuple(_target(name, one) for name, one in targets.items()),
    )


def _every(table: dict[str, object], place: str) -> str:
    every = table.get("every", "15s")
    if not isinstance(every, str):
        raise InvalidSetting(
            f'{place}: every={every!r:.40}: write a duration as "15s"'
        )
    return every


def _refuse_others(table: dict[str, object], place: str) -> None:
    for key in table:
        if key not in _TABLES:
            raise InvalidSetting(
                f"{place}: {key!r:.60} is not known; known are {', '.join(_TABLES)}"
            )


def _table(content: object, place: str) -> dict[str, object]:
    if not isinstance(content, dict) or not all(
        isinstance(one, str) for one in content
    ):
        raise InvalidSetting(f"{place}: write names with values")
    return content


class _Fields:
    """The values of one target."""

    def __init__(self, place: str, table: dict[str, object]) -> None:
        self.place = place
        self._left = {key.replace("-", "_"): value for key, value in table.items()}

    def text(self, name: str) -> str | None:
        value = self._left.pop(name, None)
        if value is not None and not isinstance(value, str):
            raise InvalidSetting(f"{self.place}: {name} must be a string")
        return None if value is None else secret_of(value, f"{self.place}: {name}")

    def needed(self, name: str) -> str:
        found = self.text(name)
        if not found:
            raise InvalidSetting(f"{self.place}: {name} is missing")
        return found

    def number(self, name: str) -> int | None:
        value = self._left.pop(name, None)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int)
        ):
            raise InvalidSetting(f"{self.place}: {name} must be a number")
        return value

    def texts(self, name: str) -> list[str]:
        value = self._left.pop(name, None)
        if not isinstance(value, list) or not all(
            isinstance(one, str) for one in value
        ):
            raise InvalidSetting(f"{self.place}: {name} must be a list of strings")
        return value

    def close(self) -> None:
        """Raise InvalidSetting for a value that nothing has asked for."""
        for name in self._left:
            raise InvalidSetting(f"{self.place}: {name!r:.60} is not known; remove it")


def _webhook(name: str, given: _Fields) -> Target:
    return Webhook(given.needed("url"), secret=given.text("secret"), name=name)


def _slack(name: str, given: _Fields) -> Target:
    return Slack(given.needed("url"), name=name)


def _email(name: str, given: _Fields) -> Target:
    return Email(
        given.needed("host"),
        sender=given.needed("sender"),
        to=given.texts("to"),
        port=given.number("port"),
        user=given.text("user"),
        password=given.text("password"),
        security=given.text("security") or "starttls",
        name=name,
    )


_TYPES: Final[Mapping[str, Callable[[str, _Fields], Target]]] = {
    "webhook": _webhook,
    "slack": _slack,
    "email": _email,
}


def _target(name: str, content: object) -> Target:
    given = _Fields(f"targets.{name}", _table(content, f"targets.{name}"))
    kind = given.needed("type")
    if kind not in _TYPES:
        raise InvalidSetting(
            f"{given.place}: type={kind!r:.40} is not known; write {', '.join(_TYPES)}"
        )
    made = _TYPES[kind](name, given)
    given.close()
    return made
