"""The gate of an advisory-lock fleet: while a slot runs, the worker holds the job's key, as the
other programs do.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, TypeAlias

from slotwise import ConfigurationError, Context, InvalidSetting, Skip
from slotwise.contrib.advisory.cron_jobs import CronJob, KeyedJob
from slotwise.contrib.advisory.lock_keys import LARGEST_KEY
from slotwise.contrib.locks.errors import LockUnavailable
from slotwise.contrib.locks.lock_database import given_url, shown
from slotwise.contrib.locks.postgresql import impatient, refusal
from slotwise.contrib.locks.provider import named_duration, record_of
from slotwise.spi import connect_arguments, elapsed, format_duration, register_reason

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.rows import TupleRow

    Session: TypeAlias = Connection[TupleRow]

logger = logging.getLogger("slotwise.advisory")

#: Another program holds the lock of the job.
LOCK_HELD: Final = "lock_held"
#: The lock that a handler needs was lost while it ran.
LOCK_LOST: Final = "lock_lost"

register_reason(
    LOCK_HELD,
    "Another process held the job's lock.",
    ended="It ended as {outcome} {ended}: the lock was taken.",
    waits="another process holds its lock",
)
register_reason(
    LOCK_LOST,
    ended="It ended as {outcome} {ended}: the job's lock was lost while the handler ran.",
    waits="its lock was lost",
)

_TRY: Final = "SELECT pg_catalog.pg_try_advisory_lock(%(key)s::bigint)"
#: Who holds a key, as far as this role may see it.
_HOLDER: Final = """
SELECT a.application_name, a.client_addr::text, a.state, l.pid,
       pg_catalog.statement_timestamp() - a.state_change
FROM pg_catalog.pg_locks AS l LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
  AND l.classid::bigint = %(high)s AND l.objid::bigint = %(low)s
  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d
                    WHERE d.datname = pg_catalog.current_database())"""
_UNLOCK: Final = "SELECT pg_catalog.pg_advisory_unlock(%(key)s::bigint)"
#: How often a pooler is tried for lending a session of the server to two clients.
_LOOKS: Final = 20


def _checked_keys(
    keys: Iterable[CronJob | KeyedJob] | Mapping[str, int],
) -> dict[str, int]:
    """Return the key of each job's name. Raise ConfigurationError for a job without a key, or with
    another's.
    """
    if not isinstance(keys, Iterable):
        raise ConfigurationError(
            f"AdvisoryGate: {keys!r:.60} has no keys; pass jobs with a key, or names with keys"
        )
    found: dict[str, int] = {}
    names: dict[int, str] = {}
    for name, key in (
        keys.items() if isinstance(keys, Mapping) else map(_name_and_key, keys)
    ):
        # Programs that hash names have keys below 1, so that these are refused where keys are
        # declared, and not here.
        if (
            not isinstance(key, int)
            or isinstance(key, bool)
            or not -LARGEST_KEY - 1 <= key <= LARGEST_KEY
        ):
            raise ConfigurationError(
                f"job {name!r}: the lock key {key!r:.60} is not a whole number of "
                "64 bits; correct it"
            )
        if names.setdefault(key, name) != name:
            raise ConfigurationError(
                f"jobs {names[key]!r} and {name!r} have the lock key {key}; take a key for each job"
            )
        if found.setdefault(name, key) != key:
            raise ConfigurationError(
                f"job {name!r} has the lock keys {found[name]} and {key}; remove one"
            )
    return found


def _name_and_key(job: CronJob | KeyedJob) -> tuple[str, int]:
    if not hasattr(job, "lock_key"):
        name = getattr(job, "name", job)
        cure = "declare it with @distributed_scheduled, or pass names with keys"
        raise ConfigurationError(f"AdvisoryGate: {name!r:.60} has no lock key; {cure}")
    return job.name, job.lock_key


def check_names(gate: str, wanted: Iterable[str], known: Collection[str]) -> None:
    """Raise ConfigurationError for a name that no job has: the job that was meant would run
    without its lock.
    """
    for name in wanted:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            cure = (
                f"did you mean {near[0]}?"
                if near
                else "remove it from the gate, or register the job"
            )
            raise ConfigurationError(f"{gate}: no job {name!r}; {cure}")


class AdvisoryGate:
    """A ``before_start`` hook that holds the PostgreSQL advisory lock of a job while one of its
    slots runs.

    ``url`` is the database in which the other programs take their locks. ``keys`` are jobs with a
    ``lock_key``, or names with keys; other jobs start without a lock. If another program holds the
    key, the slot ends as skipped with the reason ``lock_held``, and no attempt is counted.
    ``hold_at_least`` keeps the key at least this long, so that a program whose clock is behind
    does not run the same tick again. The gate checks the session every ``check_every``; if it is
    gone, the handler is asked to stop with the reason ``lock_lost``.

    Each running slot has a session of its own, because the keys of a session are re-entrant.
    Raises InvalidSetting, and ConfigurationError for a job without a key and for two jobs of one
    key.
    """

    def __init__(
        self,
        url: str,
        keys: Iterable[CronJob | KeyedJob] | Mapping[str, int],
        *,
        hold_at_least: timedelta | str = timedelta(0),
        check_every: timedelta | str = "1s",
        timeout: timedelta | str = "5s",
    ) -> None:
        self._address = given_url("AdvisoryGate", url)
        if self._address.get_backend_name() == "sqlite":
            raise InvalidSetting(
                f"{shown(self._address)}: advisory locks are PostgreSQL's; name its database"
            )
        self._keys = _checked_keys(keys)
        self._hold_at_least = named_duration(
            "AdvisoryGate: hold_at_least", hold_at_least
        ).total_seconds()
        self._check_every = named_duration(
            "AdvisoryGate: check_every", check_every
        ).total_seconds()
        self._timeout = named_duration(
            "AdvisoryGate: timeout", timeout
        ).total_seconds()
        self._is_verified = False
        if not self._check_every or not self._timeout:
            raise InvalidSetting("check_every and timeout must be longer than 0s")

    def verify(self) -> None:
        """Check that a session reaches one server process for all its statements.

        Raise ConfigurationError behind a transaction pooler, which would run the unlock on another
        session. Raise LockUnavailable if the server does not answer.
        """
        with record_of(self).answering():
            self._refuse_pooler()

    def holds(self, name: str, key: int) -> bool:
        """Return whether the gate holds this key while the job runs."""
        return self._keys.get(name) == key

    def verify_at_start(self, names: Collection[str]) -> None:
        """Raise ConfigurationError for a job that is not among these names, and behind a
        transaction pooler.

        An outage is logged; the first slot that needs a key verifies the server before it starts.
        """
        check_names("AdvisoryGate", self._keys, names)
        with suppress(LockUnavailable):
            self.verify()

    def _refuse_pooler(self) -> None:
        if self._is_verified:
            return
        with closing(self._connect()) as first, closing(self._connect()) as second:
            mine = _backend(first)
            # A pooler makes up the process id of the protocol. Race: beside busy clients, one look
            # may not show that it lends a server session to several of them.
            looks = 1 if mine == first.info.backend_pid else _LOOKS
            end = elapsed() + self._timeout
            for _ in range(looks):
                if elapsed() > end:
                    raise TimeoutError(f"no answer within {self._timeout:g} s")
                with second.transaction():
                    if _backend(second) == mine or _backend(first) != mine:
                        raise ConfigurationError(
                            f"{self}: a transaction pooler is in between, and "
                            "would unlock on another session; "
                            "name the server itself, or a pool in session mode"
                        )
        self._is_verified = True

    def __str__(self) -> str:
        return shown(self._address)

    def __call__(self, ctx: Context) -> AbstractContextManager[object] | None:
        """Acquire the key of the context's job.

        Raise Skip if another program holds it, and LockUnavailable if the server does not answer.
        """
        key = self._keys.get(ctx.name)
        if key is None:
            return None
        record = record_of(self)
        with record.answering():
            self._refuse_pooler()
            session = self._connect()
            try:
                ((is_mine,),) = session.execute(_TRY, {"key": key}).fetchall()
                holder = "" if is_mine else _holder(session, key)
            except BaseException:
                session.close()
                raise
        record.count("acquired" if is_mine else "refused")
        if not is_mine:
            session.close()
            logger.info("skipping %s: key %s is held by %s", ctx.name, key, holder)
            raise Skip(LOCK_HELD, f"Key {key} was held by {holder}.")
        return self._held(ctx, session, key)

    @contextmanager
    def _held(self, ctx: Context, session: Session, key: int) -> Iterator[None]:
        acquired = elapsed()
        over = threading.Event()
        watch = threading.Thread(
            target=self._watch,
            args=(ctx, session, key, over),
            name="slotwise-key",
            daemon=True,
        )
        watch.start()
        try:
            yield
        finally:
            over.set()
            watch.join()
            left = acquired + self._hold_at_least - elapsed()
            if left > 0 and not session.closed:
                threading.Thread(
                    target=_release_later, args=(session, key, left), daemon=True
                ).start()
            else:
                _release(session, key)

    def _watch(
        self, ctx: Context, session: Session, key: int, over: threading.Event
    ) -> None:
        while not over.wait(self._check_every):
            try:
                session.execute("SELECT 1")
            except Exception as error:
                session.close()
                record_of(self).count("lost")
                reason = f"{error}".splitlines()[0]
                logger.warning(
                    "%s: the session with key %s is gone: %s", ctx.name, key, reason
                )
                ctx.cancel(LOCK_LOST)
                return

    def _connect(self) -> Session:
        arguments = {
            "connect_timeout": str(max(round(self._timeout), 2)),
            "application_name": "slotwise key",
            **connect_arguments(self._address),
        }
        try:
            session: Session = impatient(self._timeout).connect(
                autocommit=True, prepare_threshold=None, **arguments
            )
        except Exception as error:
            if (cure := refusal(error)) is None:
                raise
            raise ConfigurationError(
                f"{self}: {str(error).splitlines()[0]}; {cure}"
            ) from error
        return session


def _holder(session: Session, key: int) -> str:
    """Say who holds a key: a session's application, address, state, and since when it has that."""
    halves = {"high": (key >> 32) & 0xFFFFFFFF, "low": key & 0xFFFFFFFF}
    found = session.execute(_HOLDER, halves).fetchone()
    if found is None:  # Race: it may have been released since.
        return "another session"
    application, address, state, process, span = found
    since = ""
    if span is not None:
        since = (
            f" for {format_duration(timedelta(seconds=round(span.total_seconds())))}"
        )
    return (
        f"{application or 'a session without a name'} at {address or 'a local socket'}, "
        f"{state or 'state not visible'}{since} (process {process} of the server)"
    )


def _backend(session: Session) -> int:
    ((process,),) = session.execute("SELECT pg_catalog.pg_backend_pid()").fetchall()
    return int(process)


def _release_later(session: Session, key: int, seconds: float) -> None:
    threading.Event().wait(seconds)
    _release(session, key)


def _release(session: Session, key: int) -> None:
    """Unlock, and close the session, which would unlock as well, but later."""
    with suppress(Exception):
        session.execute(_UNLOCK, {"key": key})
    session.close()
