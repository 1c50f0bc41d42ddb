"""What a schedule is: one pure function from an instant to the next slot, and what follows from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import ClassVar


class Schedule(ABC):
    """When a job is due: a strictly increasing row of slots, each an instant in UTC.

    Immutable, and equal to every schedule of the same text. Holds no state: the slots after an instant are
    the same whatever was asked before. All datetimes given must be aware; all returned are in UTC.
    """

    __slots__ = ("_text",)
    _text: str

    from_end: ClassVar[bool] = False
    """True where the next slot is defined by the end of the run, so that `next_after` takes that end."""

    @abstractmethod
    def next_after(self, t: datetime) -> datetime | None:
        """The first slot strictly after `t`; None if there is none, ever again."""

    @abstractmethod
    def latest_before(self, t: datetime, *, floor: datetime | None = None) -> datetime | None:
        """The newest slot strictly before `t`, and strictly after `floor` if given; None without one."""

    @abstractmethod
    def count_between(self, a: datetime, b: datetime) -> int:
        """How many slots lie after `a` up to and including `b`: exact, and cheap over years of seconds."""

    def slots(self, a: datetime, b: datetime) -> Iterator[datetime]:
        """The slots after `a` up to and including `b`, in order."""
        slot = self.next_after(a)
        while slot is not None and slot <= b:
            yield slot
            slot = self.next_after(slot)

    def first_after(self, t: datetime) -> datetime | None:
        """The slot of a job that is planned for the first time at `t`."""
        return self.next_after(t)

    def settled(self, t: datetime) -> Schedule:
        """The simplest schedule with the same slots after `t`."""
        del t
        return self

    @property
    def last(self) -> Schedule:
        """The schedule that is in force in the end: what code has proposed last."""
        return self

    def __str__(self) -> str:
        """The complete text form: `parse_schedule` makes an equal schedule of it."""
        return self._text

    def __repr__(self) -> str:
        return f"parse_schedule({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Schedule) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; make a new one instead of setting {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; make a new one instead of deleting {name}")

    def __reduce__(self) -> tuple[Callable[[str], Schedule], tuple[str]]:
        from slotwise.schedules.text import parse_schedule  # which knows every kind of schedule

        return parse_schedule, (self._text,)

    def _set(self, **values: object) -> None:
        """Fill the slots of a new instance; for constructors only."""
        for name, value in values.items():
            object.__setattr__(self, name, value)
