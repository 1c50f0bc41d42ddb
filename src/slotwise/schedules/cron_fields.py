"""The fields of a cron expression: what each accepts, with messages that show the place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NoReturn

from slotwise.errors import InvalidSchedule

_ITEM: Final = re.compile(
    r"(?:(?P<star>\*)|(?P<first>[0-9]+|[A-Z]{3})(?:-(?P<last>[0-9]+|[A-Z]{3}))?)"
    r"(?:/(?P<step>[0-9]+))?"
)
_HASH: Final = re.compile(
    r"H(?:\((?P<first>[0-9]+)-(?P<last>[0-9]+)\))?(?:/(?P<step>[0-9]+))?"
)
_HASH_OR_RANDOM: Final = re.compile(r"([HR])(?:\(.*\))?(?:/.*)?")
_IN_EVERY_MONTH: Final = 28

LAST: Final = -1
"""The number of the last one in a month of some weekday."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its name, the values it allows, and the names of those values from `low` on."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    def plain(self, text: str) -> str:
        """Return the field as numbers, ascending ranges and steps, for croniter. Raises
        InvalidSchedule.
        """
        return ",".join(self._plain_item(item) for item in text.split(","))

    def value(self, text: str) -> int:
        """The number that a number or name stands for. Raises InvalidSchedule."""
        if text in self.names:
            return self.low + self.names.index(text)
        if (
            not text.isdecimal()
            or len(text) > 4
            or not self.low <= int(text) <= self._allowed_high
        ):
            self.refuse(text)
        return (int(text) - self.low) % self._size + self.low

    def hashed(self, text: str, name: str) -> str:
        """Return the text with a number for each `H`, derived from the job's name. Raises
        InvalidSchedule.
        """
        if not has_hash(text):
            return text
        return ",".join(self._hashed_item(item, name) for item in text.split(","))

    def refuse(self, item: str, because: str = "") -> NoReturn:
        """Raise InvalidSchedule: the field, the value, and what is allowed."""
        if because:
            raise InvalidSchedule(f"{self.name} field {quoted(item)}: {because}")
        raise InvalidSchedule(f"{self.name} must be {self._range}, got {quoted(item)}")

    def _hashed_item(self, item: str, name: str) -> str:
        match = _HASH.fullmatch(item)
        if match is None:
            return item
        high = _IN_EVERY_MONTH if self is DAY else self.high
        first = int(match["first"] or self.low)
        last = int(match["last"] or high)
        if not self.low <= first <= last <= high:
            self.refuse(item, f"H({self.low}-{high}) is the widest")
        step = self._step(item, match["step"])
        width = min(step, last - first + 1) if match["step"] else last - first + 1
        from hashlib import sha256  # loads OpenSSL, for schedules with H only

        digest = sha256(f"{self.name}|{name}".encode()).digest()[:8]
        value = first + int.from_bytes(digest, "big") % width
        return f"{value}-{last}/{step}" if match["step"] else str(value)

    @property
    def _size(self) -> int:
        return self.high - self.low + 1

    @property
    def _allowed_high(self) -> int:
        return 7 if self is WEEKDAY else self.high

    @property
    def _range(self) -> str:
        names = f" or {self.names[0]}–{self.names[-1]}" if self.names else ""
        return f"{self.low}–{self._allowed_high}{names}"

    def _plain_item(self, item: str) -> str:
        match = _ITEM.fullmatch(item)
        if match is None:
            found = _HASH_OR_RANDOM.fullmatch(item)
            if found and found[1] == "R":
                self.refuse(
                    item,
                    f"a random value would differ on each node; write {self._range}",
                )
            self.refuse(
                item, f"write H, H(9-17), H/15 or {self._range}" if found else ""
            )
        step = self._step(item, match["step"])
        try:
            first, last = self._bounds(match)
        except InvalidSchedule:
            self.refuse(item)
        if last <= self.high:
            return f"{first}-{last}/{step}" if first < last else str(first)
        return ",".join(
            str((one - self.low) % self._size + self.low)
            for one in range(first, last + 1, step)
        )

    def _bounds(self, match: re.Match[str]) -> tuple[int, int]:
        """The first and last value; the last is beyond `high` in a range that wraps around."""
        if match["star"]:
            return self.low, self.high
        first = self.value(match["first"])
        if not match["last"]:
            return first, self.high if match["step"] else first
        last = self.value(match["last"])
        if last < first or (
            last == first and match["last"] == "7" != match["first"]
        ):  # 0-7 is the whole week
            last += self._size
        return first, last

    def _step(self, item: str, step: str | None) -> int:
        if step is None:
            return 1
        if len(step) > 4 or not 1 <= int(step) <= self._size:
            self.refuse(item, f"the step must be 1–{self._size}")
        return int(step)


def has_hash(text: str) -> bool:
    """Whether a field's text leaves a value to the job's name."""
    return "H" in text and any(map(_HASH.fullmatch, text.split(",")))


def quoted(text: str) -> str:
    """The text in double quotes, cut and without control characters, for a message of one line."""
    cut = text if len(text) <= 40 else text[:40] + "…"
    return f'"{repr(cut)[1:-1]}"'


SECOND: Final = Field("second", 0, 59)
MINUTE: Final = Field("minute", 0, 59)
HOUR: Final = Field("hour", 0, 23)
DAY: Final = Field("day-of-month", 1, 31)
MONTH: Final = Field(
    "month",
    1,
    12,
    (
        "JAN",
        "FEB",
        "MAR",
        "APR",
        "MAY",
        "JUN",
        "JUL",
        "AUG",
        "SEP",
        "OCT",
        "NOV",
        "DEC",
    ),
)
WEEKDAY: Final = Field(
    "day-of-week", 0, 6, ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
)
FIELDS: Final = (SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY)


_FROM_END: Final = re.compile(r"L(?:-([0-9]+))?")
_NEAREST: Final = re.compile(r"([0-9]+|L)W")
_LAST_WEEKDAY: Final = re.compile(r"([0-7]|[A-Z]{3})L|L([0-7])")
_NTH_WEEKDAY: Final = re.compile(r"([0-9]+|[A-Z]{3})#(.*)")


def month_days(text: str) -> tuple[str, frozenset[int], frozenset[int]]:
    """Read a day-of-month field: what is only numbers; then, as DatePattern has them, those of L
    and those of W.
    """
    plain = []
    from_end = set()
    nearest = set()
    for item in text.split(","):
        if match := _FROM_END.fullmatch(item):
            distance = match[1] or "0"
            if len(distance) > 2 or int(distance) > 30:
                DAY.refuse(item, "L-1 to L-30")
            from_end.add(int(distance))
        elif match := _NEAREST.fullmatch(item):
            nearest.add(DAY.high if match[1] == "L" else DAY.value(match[1]))
        else:
            plain.append(DAY.plain(item))
    return ",".join(plain), frozenset(from_end), frozenset(nearest)


def week_days(text: str) -> tuple[str, frozenset[tuple[int, int]]]:
    """Read a day-of-week field: what is only numbers, and weekdays with their number in the
    month.
    """
    plain = []
    nth = set()
    for item in text.split(","):
        if match := _LAST_WEEKDAY.fullmatch(item):
            nth.add((WEEKDAY.value(match[1] or match[2]), LAST))
        elif match := _NTH_WEEKDAY.fullmatch(item):
            if match[2] not in ("1", "2", "3", "4", "5", "L"):
                WEEKDAY.refuse(item, "#1 to #5")
            nth.add(
                (WEEKDAY.value(match[1]), LAST if match[2] == "L" else int(match[2]))
            )
        else:
            plain.append(WEEKDAY.plain(item))
    return ",".join(plain), frozenset(nth)
