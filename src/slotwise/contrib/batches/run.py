"""One run over a source in an attempt: what the plain and the awaited batches have in common."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from weakref import WeakKeyDictionary

from sqlalchemy.exc import SQLAlchemyError

from slotwise import (
    ConfigurationError,
    Context,
    InvalidSetting,
    JobContext,
    Resume,
    SlotwiseError,
    Snooze,
)
from slotwise.contrib.batches.keys import Key
from slotwise.contrib.batches.pacing import LOOK_AGAIN, Pacing
from slotwise.contrib.batches.set_aside import MOST, NEVER, AsideState, SetAside
from slotwise.contrib.batches.walk import HOPELESS, Place, Places, Walk, Wanted
from slotwise.spi import Steering, elapsed, is_transient, short_duration

#: The largest batch: its rows are in memory, and its transaction holds their locks.
LARGEST: Final = 100_000
#: How often the state of a walk is saved that has no cursor, in seconds.
SAVE: Final = 5.0
#: How often progress is logged, in seconds.
TELL: Final = 10.0
#: So often a batch is taken again that the database has refused for the moment, a deadlock for
#: instance; the pauses double from this one, in seconds.
DATABASE_TRIES: Final = 6
FIRST_PAUSE: Final = 0.1
NULLS: Final = (
    "a row of the select has NULL in a column of its order, which a cursor would never reach; "
    "leave such rows out, or order by another column"
)
#: Under this name a checkpoint holds the places of walks.
OURS: Final = "slotwise_batches"
#: So often a row may end the process that processes it alone, before it is set aside.
DEADLY: Final = 2
#: The id of a job's own slots.
OWN_SLOTS: Final = "recurring"
#: The names of the walks of an attempt, and whether they have a cursor.
_WALKS: Final[WeakKeyDictionary[Context[object], dict[str, bool]]] = (
    WeakKeyDictionary()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The keywords of ``batches``, read once."""

    size: int
    cursor: bool
    guard: bool
    name: str
    #: The columns of the order, as text: a place means nothing in another one.
    order: str
    tries: int
    retry_pause: timedelta
    wait_for_locked: timedelta
    resume_after: timedelta | None
    total: int | bool | None
    pacing: Pacing

    def __post_init__(self) -> None:
        if type(self.size) is not int or not 1 <= self.size <= LARGEST:
            raise InvalidSetting(
                f"size={self.size!r}: expected a whole number of rows, 1 to {LARGEST:,}; all "
                "rows of a batch are in memory at once"
            )
        if type(self.tries) is not int or self.tries < 0:
            raise InvalidSetting(
                f"tries={self.tries!r}: expected a whole number; 0 sets no rows aside"
            )
        if self.cursor and self.pacing.is_bounded and self.resume_after is None:
            raise InvalidSetting(
                "cursor=True with time_budget or max_batches: the end of the slot deletes its "
                'cursor; pass resume_after="1h", and the same slot goes on after that pause'
            )


class ProcessEnded(Exception):
    """Noted of a row before it is processed alone; it stays if the process does not."""

    def __str__(self) -> str:
        return "the worker's process ended while it processed this row alone"


@dataclass(slots=True)
class Run:
    """The state of one run."""

    ctx: Context[object]
    options: Options
    walk: Walk = field(init=False)
    aside: SetAside = field(init=False)
    #: Whether all rows were processed or set aside, and not a budget ended the run.
    is_complete: bool = False
    batches: int = 0
    done_before: int = 0
    total: int | None = None
    #: Whether rows are tried again that have failed before.
    _is_second: bool = False
    #: Whether the rows that have not been taken yet follow after that.
    _is_portion: bool = False
    #: How many rows are known to fail, or are set aside.
    _left_out: int = 0
    #: Rows that failed since the last success.
    _streak: list[Key] = field(default_factory=list)
    _is_waiting: bool = False
    #: Since when rows are left that others have locked, in elapsed seconds.
    _left_locked: float | None = None
    _tried: Counter[Key] = field(default_factory=Counter)
    _refused: int = 0
    _others: dict[str, object] | None = None
    _since: float = field(default_factory=elapsed)
    #: When no further batch may begin.
    _end: float = math.inf
    _saved: float | None = None
    #: The row that was noted before it is processed.
    _noted: Key | None = None
    #: Rows that have ended the process of an attempt.
    _deadly: set[Key] = field(default_factory=set)
    _is_due: bool = False
    _told: float = field(default_factory=elapsed)

    def __post_init__(self) -> None:
        self.walk = Walk(self.options.size, self.options.cursor)
        if type(self.options.total) is int:
            self.total = self.options.total

    # -- begin ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Read where the last attempt ended, and which rows are left out. Waits for the
        database.
        """
        self._take_name()
        self.aside = SetAside(self.ctx.client)
        self._end = elapsed() + self.options.pacing.seconds(self.aside.now)
        found = self.ctx.last_checkpoint
        if found is None:
            found = {OURS: {}}
        if isinstance(found, dict) and OURS in found:
            self._others = dict(found[OURS])
            self._go_on_from(self._others.get(self.options.name))
        elif self.options.cursor:
            raise ConfigurationError(
                "cursor=True keeps its place in the checkpoint of the slot, which holds a value "
                "of the handler; use one of the two"
            )
        failing = self._read_aside()
        if self._left_out >= MOST:
            self._try_again_first(failing)

    @property
    def source(self) -> str:
        """Where failures are noted. A recurring instance has its own rows; and so has each task
        with a cursor, whose rows no other one would find again.
        """
        is_own = self.options.cursor or isinstance(self.ctx, JobContext)
        if not is_own or self.ctx.id == OWN_SLOTS:
            return self.options.name
        return f"{self.options.name}@{self.ctx.id}"

    def _take_name(self) -> None:
        """Raise ConfigurationError if a cursor of this attempt has the name already."""
        others = _WALKS.setdefault(self.ctx, {})
        name = self.options.name
        if name in others and (self.options.cursor or others[name]):
            raise ConfigurationError(
                f"two walks of one handler have the name={name!r}, so one would go on where the "
                "other has ended; give each its own name="
            )
        others[name] = self.options.cursor

    def _go_on_from(self, saved: object) -> None:
        if not isinstance(saved, dict):
            return
        self.done_before = saved["done"]
        self.walk.wary = saved.get("trial", 0)
        if not self.options.cursor:
            return
        if saved["again"] is not None:
            # Race: a worker is killed after the commit, and before the entry is deleted.
            self.forget(saved["again"])
        if saved["after"] is None:
            return
        if saved["order"] != self.options.order:
            raise ConfigurationError(
                f"the cursor of this slot stands in the order {saved['order']}, which is now "
                f"{self.options.order}; restore it, or pass another name= to begin anew"
            )
        self.walk.after = saved["after"]

    def _read_aside(self) -> list[Key]:
        """Leave out what failed or was dropped; return what is to be tried again."""
        rows = self.aside.rows(self.ctx.name, self.source)
        self.walk.leave_out(row.row_key for row in rows)
        ended = type(ProcessEnded()).__name__
        self._deadly = {row.row_key for row in rows if row.error.startswith(ended)}
        self._left_out = sum(row.state is not AsideState.DROPPED for row in rows)
        tries = self.options.tries
        failing = [row.row_key for row in rows if row.state is AsideState.FAILING]
        return [key for key in failing if self._tried[key] < tries]

    def _try_again_first(self, failing: Sequence[Key]) -> None:
        """So that no statement has to leave out more and more rows."""
        self._is_second = self._is_portion = True
        self.walk.again.extend(failing)

    # -- the next batch ---------------------------------------------------------------------------

    def may_go_on(self) -> bool:
        """Whether another batch may begin. Raises JobCancelled, Resume or Snooze."""
        self.ctx.check()
        if self.ctx.stopping:
            raise Resume()
        most = self.options.pacing.max_batches
        if elapsed() < self._end and (most is None or self.batches < most):
            return True
        self.ctx.log.info("batches end here, by their budget: %s", self.progress())
        if self.options.resume_after is not None:
            raise Snooze(self.options.resume_after)
        return False

    def next(self) -> Wanted | None:
        """Return what to take next; None at the end."""
        if not self._is_second:
            return self.walk.next_rows()
        return self.walk.next_again()

    def is_at_end(self, wanted: Wanted | None, *, is_left: bool) -> bool:
        """Note that no row could be locked; return whether nothing is left to do. Waits for the
        database.

        Race: rows that another worker has locked come back if that worker is frozen, loses its
        claim and rolls back. So a run does not end while such rows are there, for a while.
        """
        self._is_waiting = is_left and not self._is_second and self._may_wait()
        if self._is_waiting:
            return False
        if wanted is not None and wanted.only is not None:
            self.forget(wanted.only)
            return False
        self._is_second = True
        self.walk.again.extend(self._read_aside())
        is_end = not self.walk.again
        if is_end and self._is_portion:
            self._is_second = self._is_portion = False
            self.walk.in_a_row = 0
            self._streak.clear()
            return False
        if is_end:
            self.is_complete = self._left_locked is None
            self.ctx.log.info("batches are through: %s", self.progress())
        return is_end

    def _may_wait(self) -> bool:
        if self._left_locked is None:
            self._left_locked = elapsed()
        limit = self.options.wait_for_locked.total_seconds()
        if elapsed() - self._left_locked < limit:
            return True
        self.ctx.log.warning(
            "batches: rows that other transactions have locked for %s are left to the next run",
            short_duration(self.options.wait_for_locked),
        )
        return False

    def pause_before_again(self) -> float:
        """Return how many seconds to wait for rows that are locked, or that failed in this run."""
        if self._is_waiting:
            return LOOK_AGAIN
        has_failed = any(self._tried[key] for key in self.walk.again)
        return self.options.retry_pause.total_seconds() if has_failed else 0.0

    def look(self) -> None:
        """Note whether the next batch saves a checkpoint: with a cursor always, without one now
        and then, until the handler has saved its own. Waits for the database, so it is called
        before the transaction, which locks the file of SQLite.
        """
        # The first batch of an attempt is saved, so that the attempt counts as one with progress.
        is_recent = self._saved is not None and elapsed() - self._saved < SAVE
        self._is_due = self.options.cursor or not is_recent
        self._note_trial()
        if self.options.cursor or is_recent or self._others is None:
            return
        found = self.ctx.last_checkpoint
        if found is not None and not (isinstance(found, dict) and OURS in found):
            self._others = None

    def _note_trial(self) -> None:
        """Save, before the first batch of a repeated attempt, how many rows it takes: if this
        attempt is lost as well, the next one takes that number of rows one by one.
        """
        is_first = self._saved is None and not self.walk.wary
        if is_first and self._is_repeated and self._others is not None:
            self.ctx.checkpoint(self._state(Places((), ()), trial=self.options.size))

    @property
    def _is_repeated(self) -> bool:
        """Whether an attempt before this one may have been lost at a row. On SQLite nothing can
        be noted beside the transaction of a batch.
        """
        if self.ctx.attempt == 1 or not self.options.tries:
            return False
        is_sqlite = self.ctx.client.database.dialect_name == "sqlite"
        return len(self._deadly) < HOPELESS and not is_sqlite

    def beware(self, places: Places) -> None:
        """Note a row before it is processed that may end the process. Waits for the database."""
        only = self.walk.only
        is_wary = self.walk.wary > 0 if only is None else only in self._deadly
        key = places.first.key if is_wary and self._is_repeated else None
        if key is None or key == self._noted:
            self._noted = key
            return
        self._noted = key
        most = min(self.options.tries, DEADLY)
        self.aside.note(self.ctx.name, self.source, key, ProcessEnded(), most)

    def survived(self) -> None:
        """Delete the note of a row that has failed, but not ended the process."""
        if self._noted is not None and not self._is_second:
            self.forget(self._noted)
            self._noted = None

    # -- the end of a batch -----------------------------------------------------------------------

    def to_save(self, places: Places) -> object:
        """Return the checkpoint that commits with this batch; None if none is due."""
        if self._others is None or not self._is_due:
            return None
        self._saved = elapsed()
        return self._state(places, trial=max(self.walk.wary - 1, 0))

    def _state(self, places: Places, *, trial: int) -> object:
        """Return what is saved once these rows are processed."""
        state = {
            "after": self.walk.place_after(places) if self.options.cursor else None,
            "order": self.options.order,
            "again": self.walk.only,
            "done": self.done + len(places),
            "total": self.total,
            "rate": round(self.rate(len(places)), 1),
            "trial": trial,
        }
        states = {**(self._others or {}), self.options.name: state}
        return {OURS: states, **_progress_of(states)}

    def succeeded(self, places: Places) -> None:
        self.batches += 1
        self._refused = 0
        self._streak.clear()
        if not self._is_second:
            self._left_locked = None
        self.walk.succeeded(places)
        if elapsed() - self._told >= TELL:
            self._told = elapsed()
            self.ctx.log.info("batches: %s", self.progress())

    def pause_after(self, rows: int, took: float) -> float:
        return self.options.pacing.pause_after(rows, took)

    def is_refused(self, error: BaseException) -> float | None:
        """Return how many seconds to wait before a batch is taken again that the database has
        refused for the moment; None if it has not, or too often.
        """
        if not _is_of_database(error) or not is_transient(error):
            return None
        self._refused += 1
        if self._refused >= DATABASE_TRIES:
            return None
        return FIRST_PAUSE * 2.0 ** (self._refused - 1)

    def is_in_doubt(self, error: BaseException) -> bool:
        """Whether a COMMIT that raised this may have moved the cursor nevertheless.

        Race: the connection breaks before the server has answered. If the checkpoint does not show
        that it has committed, it may still do so, and the attempt ends: the claim of the next one
        waits for that.
        """
        if not self.options.cursor or not _is_of_database(error):
            return False
        return is_transient(error) and not _is_rolled_back(error)

    def has_saved(self, saved: object) -> bool:
        """Whether this checkpoint has been committed. Waits for the database."""
        return self.options.guard and self.ctx.last_checkpoint == saved

    def pause_if_refused(self, error: Exception, wanted: Wanted | None) -> float:
        """Return how many seconds to wait before rows are taken that could not be taken now.
        Raises the error if it does not pass.
        """
        pause = self.is_refused(error)
        if pause is None:
            raise error
        if wanted is not None and wanted.only is not None:
            self.walk.again.appendleft(wanted.only)
        return pause

    def may_set_aside(self, error: BaseException) -> bool:
        """Whether an error may be that of one row."""
        if self.options.tries == 0 or not isinstance(error, Exception):
            return False
        if isinstance(error, Steering | SlotwiseError):
            return False
        return not (_is_of_database(error) and is_transient(error))

    def blame(
        self, places: Places, error: BaseException, *, hands_over: bool
    ) -> Place | None:
        """Note the row that failed alone; return it if it has no try left. Raises the error if ten
        rows failed in a row. Waits for the database.

        Race: a worker is killed before a function has taken the row over. So until that has
        committed, the row is failing, and not set aside.
        """
        is_first = not self._is_second
        place = self.walk.failed(places)
        if place is None:
            return None
        tries = self.options.tries
        noted = self.aside.note(
            self.ctx.name,
            self.source,
            place.key,
            error,
            NEVER if hands_over else tries,
        )
        self._tried[place.key] += 1
        self.ctx.log.warning(
            "batches: the row %s failed (%s of %s): %s",
            noted.key,
            noted.tries,
            tries,
            error,
        )
        if is_first:
            self._end_if_hopeless(place.key, error)
        is_over = noted.state is not AsideState.DROPPED and noted.tries >= tries
        return place if is_over else None

    def _end_if_hopeless(self, key: Key, error: BaseException) -> None:
        """Race: a service is away for many runs, each of which notes ten rows. From a number on
        their notes are deleted, so that these do not stop the runs for ever.
        """
        self._streak.append(key)
        self._left_out += 1
        if self.walk.in_a_row >= HOPELESS:
            if self._left_out > MOST // 2:
                for one in self._streak:
                    self.forget(one)
            error.add_note(f"{HOPELESS} rows in a row failed, so the batches end here")
            raise error
        if self._left_out >= MOST:
            self._try_again_first(self._read_aside())

    def forget(self, key: Key) -> None:
        self.aside.forget(self.ctx.name, self.source, key)

    @property
    def is_noted(self) -> bool:
        """Whether the row of this batch is noted as one that fails."""
        return self._is_second or self._noted is not None

    # -- progress ---------------------------------------------------------------------------------

    @property
    def done(self) -> int:
        """How many rows were processed for this slot, by all its attempts."""
        return self.done_before + self.walk.done

    def total_of(self, found: int) -> int:
        """Return how many rows there are, where the select finds this number now: with a cursor
        also those that were processed.
        """
        return found if self.options.cursor else self.done + found

    def rate(self, more: int = 0) -> float:
        """Return the rows a second of this attempt, with those of a batch that is yet to commit."""
        return (self.walk.done + more) / max(elapsed() - self._since, 1e-9)

    def progress(self) -> str:
        """Return how far the run is, as a line for people."""
        line = f"{self.done:,} rows, {self.rate():,.0f} rows/s"
        if self.total is None:
            return line
        rest = max(self.total - self.done, 0)
        line = f"{self.done:,} of {self.total:,} rows, {self.rate():,.0f} rows/s"
        if not rest or not self.walk.done:
            return line
        left = short_duration(timedelta(seconds=round(rest / self.rate())))
        return f"{line}, about {left} left"


def _progress_of(states: dict[str, object]) -> dict[str, object]:
    """Return what is shown of all walks of a handler: their sums, and the rate of the newest."""
    found = [state for state in states.values() if isinstance(state, dict)]
    totals = [state["total"] for state in found]
    return {
        "done": sum(state["done"] for state in found),
        "total": None if None in totals else sum(totals),
        "rate": found[-1]["rate"],
    }


def _is_of_database(error: BaseException) -> bool:
    """Whether a driver has raised an error, or SQLAlchemy or Django for it."""
    if isinstance(error, SQLAlchemyError):
        return True
    for name in ("psycopg", "django.db"):
        module = sys.modules.get(name)
        kind = getattr(module, "Error", None)
        if isinstance(kind, type) and isinstance(error, kind):
            return True
    return False


def _is_rolled_back(error: BaseException) -> bool:
    """Whether the server says that it has rolled back: a deadlock, a serialization failure."""
    states = (getattr(one, "sqlstate", None) for one in (error, error.__cause__))
    return any(isinstance(one, str) and one.startswith("40") for one in states)


def with_cure(error: ConfigurationError) -> ConfigurationError:
    """Return the error of a transaction that cannot be guarded, with what to do."""
    return ConfigurationError(
        f"{error}; rows in another database than slotwise's tables: batches(…, guard=False); a "
        "batch may then run twice, so a unique key must make that harmless"
    )
