"""Which rows a walk takes next, and what a failure means: pure.

A batch that fails is rolled back and taken again in halves, until the row that fails stands alone.
That row is noted and left out; the others go on. At the end of the pass each row that was noted is
tried again, alone.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from slotwise import ConfigurationError
from slotwise.contrib.batches.keys import Key

#: Rows that fail one after another, without a success between: then not the rows are wrong.
HOPELESS: Final = 10


class Place(NamedTuple):
    """Where a row stands: its key, and the values that it is ordered by, which end with the key."""

    key: Key
    order: Key


@dataclass(frozen=True, slots=True)
class Places:
    """The places of the rows of a batch, of which few are ever looked at one by one."""

    keys: Sequence[Key]
    orders: Sequence[Key]

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def first(self) -> Place:
        return Place(self.keys[0], self.orders[0])


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to take: up to ``limit`` rows behind ``after``, none of ``without``; or the one row
    with the key ``only``.
    """

    limit: int
    after: Key | None = None
    without: Sequence[Key] = ()
    only: Key | None = None


@dataclass(slots=True)
class Halving:
    """The size of the next batch. Among ``suspects`` rows, the next ones, is one that fails."""

    size: int
    suspects: int = 0

    @property
    def limit(self) -> int:
        if not self.suspects:
            return self.size
        return (self.suspects + 1) // 2

    def succeeded(self, count: int) -> None:
        self.suspects = max(self.suspects - count, 0)

    def failed(self, count: int) -> bool:
        """Note a failure; return whether the row that fails has been found."""
        self.suspects = count if count > 1 else 0
        return count == 1


@dataclass(slots=True)
class Walk:
    """One walk over the rows of a select.

    With ``by_cursor`` the place of the last row is remembered, and the next batch begins behind
    it. Without, a row that was processed must no longer match the select.
    """

    size: int
    by_cursor: bool
    after: Key | None = None
    #: Rows to leave out: set aside, dropped, or noted in this pass.
    without: dict[Key, None] = field(default_factory=dict)
    #: Rows that were noted, to be tried once more each.
    again: deque[Key] = field(default_factory=deque)
    halving: Halving = field(init=False)
    done: int = 0
    #: Rows that failed since the last success.
    in_a_row: int = 0
    #: How many rows are taken one by one, because an attempt was lost at them.
    wary: int = 0
    _last: frozenset[Key] = frozenset()
    _taken: frozenset[Key] = frozenset()
    _only: Key | None = None

    def __post_init__(self) -> None:
        self.halving = Halving(self.size)

    def next_rows(self) -> Wanted:
        """Return what to take in this pass."""
        self._only = None
        limit = 1 if self.wary else self.halving.limit
        return Wanted(limit, self.after, tuple(self.without))

    def next_again(self) -> Wanted | None:
        """Return the next row that is tried again; None if there is none."""
        if not self.again:
            return None
        self._only = self.again.popleft()
        return Wanted(1, only=self._only)

    @property
    def only(self) -> Key | None:
        """The row that is tried again now."""
        return self._only

    def check(self, places: Places) -> None:
        """Raise ConfigurationError for rows that a walk could lose or process twice."""
        keys = places.keys
        compared = places.orders if self.by_cursor else keys
        for number, values in enumerate(compared):
            if None in values:
                raise ConfigurationError(
                    f"the row with the key {_shown(keys[number])} has NULL in a column of "
                    "key= or order=, which no comparison finds; leave such rows out by the "
                    "select, or order by another column"
                )
        self._taken = frozenset(keys)
        if len(self._taken) < len(keys):
            twice = Counter(keys).most_common(1)[0][0]
            raise ConfigurationError(
                f"two rows have the key {_shown(twice)}; key= needs columns that are unique "
                "together"
            )
        again = self._last & self._taken
        if again and self._only is None:
            raise ConfigurationError(
                f"the row {_shown(next(iter(again)))} was processed and still matches the "
                "select; change in the batch what the select asks for (a status), or pass "
                "cursor=True"
            )

    def succeeded(self, places: Places) -> None:
        """Note a batch that is committed."""
        self.done += len(places)
        self.in_a_row = 0
        if self._only is not None:
            self.without.pop(self._only, None)
            return
        self.halving.succeeded(len(places))
        self.wary = max(self.wary - 1, 0)
        if self.by_cursor:
            self.after = places.orders[-1]
        else:
            self._last = self._taken

    def failed(self, places: Places) -> Place | None:
        """Note a batch that failed; return the row that is to blame, if it stands alone."""
        if self._only is None and not self.halving.failed(len(places)):
            return None
        self.wary = max(self.wary - 1, 0)
        found = places.first
        self.in_a_row += 1
        self.without[found.key] = None
        if self.by_cursor and self._only is None:
            self.after = found.order
        return found

    def place_after(self, places: Places) -> Key | None:
        """Return the place to save when these rows are processed."""
        is_moved = len(places) > 0 and self._only is None
        return places.orders[-1] if is_moved else self.after

    def leave_out(self, keys: Iterable[Key]) -> None:
        self.without.update(dict.fromkeys(keys))


def _shown(key: Key) -> str:
    return repr(key[0] if len(key) == 1 else key)
