"""The rules of order, without a database: who gets an event, where it stands in the order of its
key, and which row may run next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from slotwise.spi import RowState

#: What becomes of the later events of a key if one is dead: they wait, or they go on.
OnFailure: TypeAlias = Literal["block", "continue"]
BLOCK: Final = "block"
CONTINUE: Final = "continue"


class Lane(NamedTuple):
    """The events of one key for one handler, which are handled one after the other."""

    handler: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A handler of one name of events."""

    handler: str
    event: str
    on_failure: OnFailure = BLOCK
    priority: int | None = None
    #: Its former names, under which rows may still wait.
    former: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All names under which it may have rows."""
        return (self.handler, *self.former)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A committed event that the fan-out has not given to anybody."""

    id: int
    name: str
    key: str | None = None
    #: The bytes of its data.
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneState:
    """What a lane has already. ``last``: its newest position, 0 without rows; ``is_taken``: a row
    stands before those that are appended.
    """

    last: int = 0
    is_taken: bool = False


#: A lane without rows.
EMPTY: Final = LaneState()


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """A row to insert for a handler and an event."""

    handler: str
    event: Waiting
    position: int
    is_blocked: bool
    priority: int | None = None


class First(NamedTuple):
    """The first row of a lane that its rule looks at."""

    name: str
    id: str
    state: str | None
    position: int


def subscribers(
    event: Waiting, subscriptions: Iterable[Subscription]
) -> list[Subscription]:
    """Return who gets an event that is given out now: each handler of its name that is registered.

    Race: an event with a low number may be committed after a handler was registered, and numbers
    do not tell when that was. So a handler also gets what was committed before, if it had not been
    given out yet.
    """
    return [one for one in subscriptions if one.event == event.name]


def appended(
    events: Sequence[Waiting],
    subscriptions: Sequence[Subscription],
    lanes: Mapping[Lane, LaneState],
    now: int,
) -> list[Appended]:
    """Return the rows of these events, in the order of their numbers. ``now``: the first position
    of an empty lane.

    The first row of a lane may run; the others wait for the one before. A position is above all
    others of its lane, whatever the clock says.
    """
    by_name = _by_event(subscriptions)
    states = dict(lanes)
    rows = []
    for event in sorted(events, key=lambda one: one.id):
        for one in subscribers(event, by_name.get(event.name, ())):
            lane = None if event.key is None else Lane(one.handler, event.key)
            state = EMPTY if lane is None else states.get(lane, EMPTY)
            row = _row(event, one, state, now)
            if lane is not None:
                states[lane] = LaneState(last=row.position, is_taken=True)
            rows.append(row)
    return rows


def _by_event(
    subscriptions: Iterable[Subscription],
) -> dict[str, list[Subscription]]:
    by_name: dict[str, list[Subscription]] = {}
    for one in subscriptions:
        by_name.setdefault(one.event, []).append(one)
    return by_name


def _row(event: Waiting, one: Subscription, state: LaneState, now: int) -> Appended:
    return Appended(
        handler=one.handler,
        event=event,
        position=max(now, state.last + 1),
        is_blocked=state.is_taken,
        priority=one.priority,
    )


def is_passed(state: str | None, on_failure: OnFailure) -> bool:
    """Whether a row lets the later ones of its lane go before it."""
    return state == RowState.DEAD and on_failure == CONTINUE


def to_promote(rows: Iterable[First]) -> First | None:
    """Return the row of a lane that may run now, of the first rows under each name of its handler;
    None if the first one runs, waits for its due time, or is dead.
    """
    first = min(rows, key=lambda one: one.position, default=None)
    if first is None or first.state != RowState.BLOCKED:
        return None
    return first
