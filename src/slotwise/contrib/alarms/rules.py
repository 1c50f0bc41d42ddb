"""Which alarms there are, and from when on each is raised."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from enum import StrEnum
from typing import Final, TypedDict, TypeVar, Unpack

from slotwise import InvalidSetting
from slotwise.spi import parse_duration


class AlarmKind(StrEnum):
    """What an incident is about."""

    FAILED = "failed"
    IN_A_ROW = "in_a_row"
    LOST = "lost"
    DEAD = "dead"
    NO_SUCCESS = "no_success"
    LATE = "late"
    FINISH_BY = "finish_by"
    BACKLOG = "backlog"
    NO_WORKER = "no_worker"
    UNROUTABLE = "unroutable"
    CALENDAR = "calendar"


#: Kinds of which each case is separate evidence, such as a slot that failed; what is measured at
#: each round lasts as long as it is found.
BY_EVIDENCE: Final = frozenset({AlarmKind.FAILED, AlarmKind.LOST})
Decorated = TypeVar("Decorated")


#: The attribute of a class or function that has its rules.
DECLARED: Final = "alarms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """From when on alarms are raised for a job or task. None, or an empty ``off``, as said below.

    Durations may be given as ``timedelta`` or ``"10m"``. Raises InvalidSetting.
    """

    #: Failures in a row, retries included, that raise ``in_a_row``; None: never.
    in_a_row: int | None = 3
    #: How long a slot that should have succeeded may be due before ``no_success``; None: for ever.
    no_success_after: timedelta | str | None = timedelta(hours=2)
    #: How long a due slot may wait for its start before ``late``; None: for ever.
    late_after: timedelta | str | None = timedelta(minutes=10)
    #: How long a due one-time task may wait before ``backlog``; None: for ever.
    backlog_after: timedelta | str | None = timedelta(minutes=10)
    #: Kinds that are not raised at all.
    off: Collection[AlarmKind | str] = frozenset()

    def __post_init__(self) -> None:
        for name in ("no_success_after", "late_after", "backlog_after"):
            given = getattr(self, name)
            read = None if given is None else parse_duration(given)
            if read is not None and not read:
                raise InvalidSetting(
                    f"{name} must be more than zero; None turns it off"
                )
            object.__setattr__(self, name, read)
        count = self.in_a_row
        if count is not None and (isinstance(count, bool) or count < 1):
            raise InvalidSetting(
                f"in_a_row={count!r:.40}: write a whole number from 1, or None"
            )
        object.__setattr__(self, "off", frozenset(map(kind_named, self.off)))

    def raises(self, kind: AlarmKind) -> bool:
        return kind not in self.off


class RulesKeywords(TypedDict, total=False):
    """The keywords of Rules."""

    in_a_row: int | None
    no_success_after: timedelta | str | None
    late_after: timedelta | str | None
    backlog_after: timedelta | str | None
    off: Collection[AlarmKind | str]


def alarm_rules(
    **keywords: Unpack[RulesKeywords],
) -> Callable[[Decorated], Decorated]:
    """Declare the rules of a job or task, above its class or below ``@job`` or ``@task``.

    Raises InvalidSetting.
    """
    rules = Rules(**keywords)

    def declare(decorated: Decorated) -> Decorated:
        setattr(decorated, DECLARED, rules)
        return decorated

    return declare


def kind_named(text: str) -> AlarmKind:
    """Return the kind of this name. Raise InvalidSetting."""
    try:
        return AlarmKind(text)
    except ValueError:
        raise InvalidSetting(
            f"{text!r:.60} is no kind of alarm; known are {', '.join(AlarmKind)}"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleBook:
    """The rules for all names, and those of some of them."""

    usual: Rules = field(default_factory=Rules)
    by_name: Mapping[str, Rules] = field(default_factory=dict)

    def of(self, name: str) -> Rules:
        return self.by_name.get(name, self.usual)

    def with_names(self, more: Mapping[str, Rules]) -> RuleBook:
        """Return a book with these rules too; those of this book have precedence."""
        return replace(self, by_name={**more, **self.by_name})


def rules_from(
    table: Mapping[str, object], place: str, usual: Rules | None = None
) -> Rules:
    """Return rules as a file has them; what it does not say is as usual. Raise InvalidSetting."""
    known = {spec.name for spec in fields(Rules)}
    changes: dict[str, object] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in known:
            raise InvalidSetting(
                f"{place}: {key!r:.60} is not known; known are {', '.join(sorted(known))}"
            )
        is_off = value is False and name != "off"
        changes[name] = None if is_off else _checked(name, value, place)
    try:
        return replace(usual or Rules(), **changes)  # type: ignore[arg-type]  # checked above
    except InvalidSetting as error:
        raise InvalidSetting(f"{place}: {error}") from None


def _checked(name: str, value: object, place: str) -> object:
    """Return a value of the kind that a rule takes. Raise InvalidSetting."""
    if name == "off":
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            return frozenset(value)
        raise InvalidSetting(f'{place}: off={value!r:.60}: write a list, as ["late"]')
    expected: type = int if name == "in_a_row" else str
    if isinstance(value, bool) or not isinstance(value, expected):
        raise InvalidSetting(
            f"{place}: {name}={value!r:.60}: write {'3' if expected is int else '10m'}, "
            "or false to turn it off"
        )
    return value
