"""The conformance suite for authors of a dialect: what two and more connections do at once.

    class TestMariaDB(DialectConformance):
        @pytest.fixture(autouse=True)
        def database(self):
            self.engine = sa.create_engine("mariadb+pymysql://…")
            self.dialect = MariaDB(Tables(), DatabaseClock())
            self.dialect.tables.metadata.create_all(self.engine)

A dialect with several writers passes all of it. A body that is right with one writer only fails,
where a single connection would notice nothing. Each test uses names of its own, and needs no empty
tables.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from slotwise.spi import (
    Claim,
    ClaimRequest,
    Dialect,
    Key,
    Kind,
    LedgerKey,
    Origin,
    Row,
)

#: How long a transaction waits for a lock that it must not get.
SHORT = timedelta(milliseconds=200)
LEASE = timedelta(minutes=1)
HOLDER = "conformance:1:a"


class DialectConformance:
    """Tests as methods, for pytest or any runner: a subclass sets ``engine`` and ``dialect``."""

    #: An engine that gives each caller a connection of its own; READ COMMITTED.
    engine: sa.Engine
    #: The dialect, whose tables exist there.
    dialect: Dialect

    # -- claims and held rows ---------------------------------------------------------------------

    def test_a_claim_skips_rows_that_another_claim_is_taking(self) -> None:
        name = self._due_tasks("1", "2")
        with self.engine.connect() as one, self.engine.connect() as other:
            first, _ = self.dialect.claim_tasks(one, self._request(name, 1))
            self.dialect.hurry(other, SHORT)
            second, _ = self.dialect.claim_tasks(other, self._request(name, 2))
            assert len(first) == 1
            assert {row.key for row in second} == {
                Key(name, id) for id in ("1", "2")
            } - {first[0].key}

    def test_a_held_row_that_is_locked_is_skipped(self) -> None:
        """``hold``: two reapers must not release the same row."""
        claim = self._claimed()
        with self.engine.connect() as one, self.engine.connect() as other:
            held = self.dialect.hold(one, [claim], wait=False)
            assert [found.row.key for found in held] == [claim.key]
            assert self.dialect.hold(other, [claim], wait=False) == []

    def test_a_settlement_waits_for_a_locked_row(self) -> None:
        """``hold``: with ``wait``, up to the lock timeout."""
        claim = self._claimed()
        with self.engine.connect() as one, self.engine.connect() as other:
            self.dialect.hold(one, [claim], wait=False)
            self.dialect.hurry(other, SHORT)
            assert _raises(lambda: self.dialect.hold(other, [claim], wait=True))

    def test_a_stale_claim_holds_nothing(self) -> None:
        """Law 1: key, version and holder."""
        claim = self._claimed()
        stranger = Claim(
            row=claim.row,
            holder="conformance:1:b",
            lease=LEASE,
            claimed_at=claim.claimed_at,
        )
        with self.engine.connect() as one:
            assert self.dialect.hold(one, [stranger], wait=False) == []
            assert self.dialect.beat(one, stranger.holder, [stranger]) == set()

    def test_a_heartbeat_does_not_wait(self) -> None:
        claim = self._claimed()
        with self.engine.connect() as one, self.engine.connect() as other:
            self.dialect.hold(one, [claim], wait=False)
            self.dialect.hurry(other, SHORT)
            assert self.dialect.beat(other, HOLDER, [claim]) == set()
            assert self.dialect.still_held(other, [claim]) == {claim.fence}

    def test_rows_that_others_have_locked_are_named(self) -> None:
        """``lock``: the settlement leaves them, and does not write them unlocked."""
        key = self._claimed().key
        with self.engine.connect() as one, self.engine.connect() as other:
            assert self.dialect.lock(one, [key], wait=False) == set()
            assert self.dialect.lock(other, [key], wait=False) == {key}

    # -- the ledger -------------------------------------------------------------------------------

    def test_a_locked_ledger_row_is_absent_and_not_unknown(self) -> None:
        """``entries``: a user's guard may lock it."""
        row = self._slot_row()
        key = _ledger_key(row)
        with self.engine.begin() as connection:
            assert self.dialect.enter(connection, [row], self._now(connection), ())
        with self.engine.connect() as one, self.engine.connect() as other:
            assert self.dialect.entries(one, [key], wait=False)[key] is not None
            assert self.dialect.entries(other, [key], wait=False) == {}

    def test_of_two_rows_one_enters_their_slot(self) -> None:
        """Law 3: the second meets the key of the first, whose transaction is still open."""
        row = self._slot_row()
        rival = self._slot_row(row)
        with ThreadPoolExecutor(1) as thread, self.engine.connect() as one:
            now = self._now(one)
            assert self.dialect.enter(one, [row], now, ())
            second = thread.submit(self._enter_alone, rival, now)
            one.commit()
            assert not second.result()

    def _enter_alone(self, row: Row, now: datetime) -> bool:
        with self.engine.begin() as other:
            return bool(self.dialect.enter(other, [row], now, ()))

    # -- locks of a name --------------------------------------------------------------------------

    def test_one_transaction_has_the_turn_of_a_name(self) -> None:
        """``alone``: two claims that count the places of a limit would both take the last one."""
        name = _new_name()
        with self.engine.begin() as first:
            assert self.dialect.alone(first, name)
        with self.engine.connect() as one, self.engine.connect() as other:
            assert self.dialect.alone(one, name)
            assert not self.dialect.alone(other, name)
            one.rollback()
            other.rollback()
            assert self.dialect.alone(other, name)

    def test_an_operation_excludes_new_instances(self) -> None:
        """``latch``: whoever creates an instance waits for an operation on all of them."""
        name = _new_name()
        with self.engine.begin() as first:
            self.dialect.latch(first, name, shared=True)
        with self.engine.connect() as one, self.engine.connect() as other:
            self.dialect.latch(one, name, shared=True)
            self.dialect.hurry(other, SHORT)
            self.dialect.latch(other, name, shared=True)
            other.rollback()
            self.dialect.hurry(other, SHORT)
            assert _raises(lambda: self.dialect.latch(other, name, shared=False))

    # -- replies that get lost --------------------------------------------------------------------

    def test_whether_a_transaction_was_committed_is_known(self) -> None:
        """``transaction_id`` and ``committed``: the reply to a commit may be lost."""
        for is_committed in (True, False):
            with self.engine.connect() as one:
                mark = {"key": _new_name(), "value": "written"}
                assert self.dialect.insert_new(one, self.dialect.tables.meta, mark)
                id = self.dialect.transaction_id(one)
                assert id is not None
                with self.engine.connect() as other:
                    self.dialect.hurry(other, SHORT)
                    assert self.dialect.committed(other, id) is None
                if is_committed:
                    one.commit()
                else:
                    one.rollback()
            with self.engine.connect() as other:
                assert self.dialect.committed(other, id) is is_committed

    # -- what they begin with ---------------------------------------------------------------------

    def _now(self, connection: sa.Connection) -> datetime:
        return self.dialect.now(connection)

    def _due_tasks(self, *ids: str) -> str:
        """Insert one-time tasks that are due; return their new name."""
        name = _new_name()
        tasks = self.dialect.tables.tasks
        with self.engine.begin() as connection:
            due = self._now(connection) - timedelta(minutes=1)
            for id in ids:
                row = {
                    "task_name": name,
                    "task_instance": id,
                    "execution_time": due,
                    "slot": due,
                    "kind": Kind.TASK,
                    "picked": False,
                    "version": 2,
                    "created_version": 2,
                }
                assert self.dialect.insert_new(connection, tasks, row)
        return name

    def _request(self, name: str, limit: int) -> ClaimRequest:
        return ClaimRequest(
            holder=HOLDER, names=[name], limit=limit, lease=LEASE, lost=0
        )

    def _claimed(self) -> Claim:
        name = self._due_tasks("1")
        with self.engine.begin() as connection:
            (row,), _ = self.dialect.claim_tasks(connection, self._request(name, 1))
            now = self._now(connection)
        return Claim(row=row, holder=HOLDER, lease=LEASE, claimed_at=now)

    def _slot_row(self, rival: Row | None = None) -> Row:
        """Insert a held row of a slot; one beside the plan row ``rival``, for the same slot."""
        with self.engine.begin() as connection:
            now = self._now(connection)
            row = Row(
                task_name=_new_name() if rival is None else rival.task_name,
                task_instance="recurring" if rival is None else "recurring@beside",
                plan_instance=None if rival is None else "recurring",
                execution_time=now,
                version=2 if rival is None else rival.version + 1,
                picked=True,
                picked_by=HOLDER,
                kind=Kind.PLAN if rival is None else Kind.DETACHED,
                slot=now if rival is None else rival.slot,
                origin=Origin.SCHEDULE,
                attempt=1,
            )
            values = {name: getattr(row, name) for name in _COLUMNS}
            tasks = self.dialect.tables.tasks
            assert self.dialect.insert_new(connection, tasks, values)
        return row


#: The columns of a held row of a slot.
_COLUMNS = (
    "task_name",
    "task_instance",
    "plan_instance",
    "execution_time",
    "version",
    "picked",
    "picked_by",
    "kind",
    "slot",
    "origin",
    "attempt",
)


def _new_name() -> str:
    return f"conformance-{uuid4().hex}"


def _ledger_key(row: Row) -> LedgerKey:
    key = row.ledger_key
    assert key is not None
    return key


def _raises(call: object) -> bool:
    """Whether a call fails in the database, here for the lock timeout."""
    assert callable(call)
    try:
        call()
    except DBAPIError:
        return True
    return False
