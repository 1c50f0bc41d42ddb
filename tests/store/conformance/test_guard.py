"""Proof of holding inside a user's own transaction, under every isolation level."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session
from tests.kit.records import Aborted, AttemptOutcome, Failed, Succeeded
from tests.kit.store import LedgerFence
from tests.store.bench import Bench, a_task, at, stale

from slotwise import ClaimLost, ConfigurationError, Settings
from slotwise.spi import Claim, Database

LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]

#: A job's slot is guarded by its ledger row, a one-time task by its queue row.
KINDS = ["plain", "mail"]


def user_engine(url: str, **options: object) -> sa.Engine:
    """The application's own engine, made as applications make theirs."""
    address = sa.make_url(url)
    if address.get_backend_name() == "postgresql":
        address = address.set(drivername="postgresql+psycopg")
    elif address.get_backend_name() == "mysql":
        address = address.set(drivername="mysql+pymysql")
    return sa.create_engine(address, **options)


class User:
    """An application with a table of its own, in the database that holds slotwise's tables."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.engine = user_engine(str(bench.database.settings.database_url))
        self.fence = LedgerFence(bench.store)
        with self.engine.begin() as connection:
            connection.execute(sa.text("CREATE TABLE effects (slot text)"))

    def add_effect(self, connection: sa.Connection | Session) -> None:
        connection.execute(sa.text("INSERT INTO effects VALUES ('done')"))

    @property
    def effects(self) -> int:
        with self.engine.connect() as connection:
            found: int = connection.execute(
                sa.text("SELECT count(*) FROM effects")
            ).scalar_one()
            return found

    def transaction(self, level: str) -> sa.Connection:
        """A transaction whose snapshot has been taken."""
        connection = self.engine.connect().execution_options(isolation_level=level)
        connection.execute(sa.text("SELECT count(*) FROM effects"))
        return connection


@pytest.fixture
def user(bench: Bench) -> Iterator[User]:
    user = User(bench)
    yield user
    user.engine.dispose()


@pytest.fixture
def pg_user(pg_bench: Bench) -> Iterator[User]:
    user = User(pg_bench)
    yield user
    user.engine.dispose()


def claimed(user: User, kind: str = "plain", **options: timedelta) -> Claim:
    """A claim of a slot, or of a task, that is running."""
    if kind == "mail":
        user.bench.client.schedule("mail", id="1", at=at(1))
    user.bench.tick()
    return user.bench.claim_one(kind, **options)


# -- on every database ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_work_under_a_guard_commits(user: User, kind: str) -> None:
    """A good claim changes nothing for the user's transaction, and the attempt ends as it
    would.
    """
    claim = claimed(user, kind)
    with user.engine.begin() as connection:
        user.fence.guard(claim, connection)
        user.add_effect(connection)
    assert user.effects == 1
    transition = user.bench.settle(claim)
    assert transition is not None
    assert transition.label == "succeeded"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", ["guard", "complete_in"])
@pytest.mark.parametrize(
    "how", ["taken over", "taken over and claimed again", "settled", "token", "holder"]
)
def test_a_stale_token_aborts_the_users_transaction(
    user: User, kind: str, verb: str, how: str
) -> None:
    """Whoever has lost the claim can commit nothing under it."""
    claim = claimed(user, kind)
    match how:
        case "taken over":
            user.bench.take_over(claim)
        case "taken over and claimed again":
            user.bench.take_over(claim)
            user.bench.claim_one(kind, "host:2:b")
        case "settled":
            user.bench.settle(claim)
        case "token":
            claim = stale(claim, version=1)
        case "holder":
            claim = stale(claim, holder="host:2:b")
    words = (
        "has succeeded already"
        if (how, kind) == ("settled", "plain")
        else f"token {claim.token} is stale"
    )
    with pytest.raises(ClaimLost, match=words), user.engine.begin() as connection:  # noqa: PT012
        user.add_effect(connection)
        getattr(user.fence, verb)(claim, connection)
    assert user.effects == 0


@pytest.mark.parametrize("kind", KINDS)
def test_complete_in_commits_work_and_success_together(user: User, kind: str) -> None:
    """The queue row is advanced afterwards, by the settlement."""
    claim = claimed(user, kind)
    with user.engine.begin() as connection:
        user.fence.complete_in(claim, connection)
        user.add_effect(connection)
    entry = user.bench.slot(kind)
    assert (entry["outcome"], entry["token"], entry["slot"]) == (
        "succeeded",
        claim.token,
        at(1),
    )
    assert user.bench.row(*claim.key).picked
    transition = user.bench.settle(claim, Succeeded(promised=True))
    assert transition is not None
    assert transition.label == "succeeded"
    if kind == "plain":
        assert (user.bench.row("plain").slot, user.bench.outcomes("plain")) == (
            at(2),
            [(1, "succeeded")],
        )
    else:
        assert user.bench.find("mail", "1") is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_promise_that_was_rolled_back_is_a_failure(user: User, kind: str) -> None:
    """Whatever the handler returned: work and settlement commit together or not."""
    claim = claimed(user, kind)
    with user.engine.connect() as connection:
        user.fence.complete_in(claim, connection)
        user.add_effect(connection)
        connection.rollback()
    transition = user.bench.settle(claim, Succeeded(promised=True))
    assert transition is not None
    assert transition.label == "failed"
    assert user.effects == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "outcome",
    [
        Failed("raised after its commit", promised=True),
        Aborted("shutdown"),
        Aborted("lost"),
    ],
    ids=["raised", "shut down", "lease ran out"],
)
def test_what_was_completed_is_not_run_again(
    user: User, kind: str, outcome: AttemptOutcome
) -> None:
    """However the handler ended after its commit: exactly once."""
    claim = claimed(user, kind)
    with user.engine.begin() as connection:
        user.fence.complete_in(claim, connection)
    transition = user.bench.settle(claim, outcome)
    assert transition is not None
    assert transition.label == "succeeded"
    assert user.bench.claim(kind) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_completed_claim_of_a_dead_worker_is_a_success(
    user: User, kind: str
) -> None:
    """Died between its commit and its settlement: the reaper finds "succeeded" under the lost
    token.
    """
    claim = claimed(user, kind)
    with user.engine.begin() as connection:
        user.fence.complete_in(claim, connection)
    (taken,) = user.bench.take_over(claim)
    assert taken.transition is not None
    assert taken.transition.label == "succeeded"
    assert user.bench.claim(kind) == []


@pytest.mark.parametrize("end", ["settlement", "take-over"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_completed_stays_as_it_was_written(
    user: User, kind: str, end: str
) -> None:
    """Law 3: one attempt completes a slot, once. The settlement after it moves the row and leaves
    the ledger alone. Of a task without a record nothing stays.
    """
    claim = claimed(user, kind)
    with user.engine.begin() as connection:
        user.fence.complete_in(claim, connection)
    before = user.bench.slots(kind)
    user.bench.tick(0.5)
    if end == "settlement":
        user.bench.settle(claim, Succeeded(promised=True))
    else:
        user.bench.take_over(claim)
    assert len(before) == 1
    assert user.bench.slots(kind) == ([] if kind == "mail" else before)


@pytest.mark.parametrize(
    ("policies", "kept"),
    [
        ({"record": "none"}, []),
        ({"record": "failures"}, []),
        ({"record": "all"}, [None]),
        ({"result_retention": "1h"}, []),
        ({"record": "failures", "result_retention": "1h"}, [timedelta(hours=1)]),
    ],
)
@pytest.mark.parametrize("end", ["settlement", "take-over"])
def test_a_completed_task_leaves_what_its_record_says(
    user: User, end: str, policies: dict[str, Any], kept: list[timedelta | None]
) -> None:
    """As one that returned: a success stays only if the task keeps it, and as long as it says."""
    user.bench = user.bench.beside(a_task("mail", **policies))
    claim = claimed(user, "mail")
    with user.engine.begin() as connection:
        user.fence.complete_in(claim, connection)
    if end == "settlement":
        user.bench.settle(claim, Succeeded(promised=True))
    else:
        user.bench.take_over(claim)
    found = user.bench.slots("mail")
    assert [row["outcome"] for row in found] == ["succeeded"] * len(kept)
    assert [
        row["expires"] and row["expires"] - user.bench.clock.now() for row in found
    ] == kept


def test_completing_twice_is_refused(user: User) -> None:
    """The slot is done; a second completion has nothing to hold on to."""
    claim = claimed(user)
    with user.engine.begin() as connection:
        user.fence.complete_in(claim, connection)
    for word in (user.fence.complete_in, user.fence.guard):
        with (  # noqa: PT012
            pytest.raises(ClaimLost, match="once, as the last word"),
            user.engine.begin() as own,
        ):
            user.add_effect(own)
            word(claim, own)
    assert user.effects == 0


def test_completing_again_after_a_rollback_is_right(user: User) -> None:
    """What the first transaction has written went with it."""
    claim = claimed(user)
    with user.engine.connect() as connection:
        user.fence.complete_in(claim, connection)
        connection.rollback()
        user.fence.complete_in(claim, connection)
        connection.commit()
    assert user.bench.slot("plain")["outcome"] == "succeeded"


def test_a_task_id_used_again_has_its_own_success(user: User) -> None:
    """The ledger row of the id's first life says nothing about the second."""
    for life in range(2):
        user.bench.client.schedule("mail", id="1", at=at(1))
        user.bench.clock.set(at(1) + timedelta(seconds=life))
        claim = user.bench.claim_one("mail")
        with user.engine.begin() as connection:
            user.fence.complete_in(claim, connection)
        assert user.bench.slot("mail")["token"] == claim.token
        user.bench.settle(claim, Succeeded(promised=True))
    user.bench.client.schedule("mail", id="1", at=at(1))
    user.bench.tick()
    claim = user.bench.claim_one("mail")
    transition = user.bench.settle(claim, Succeeded(promised=True))
    assert transition is not None
    assert transition.label == "failed"


def test_an_orm_session_will_do(user: User) -> None:
    """It stands for its connection."""
    claim = claimed(user)
    with Session(user.engine) as session:
        user.fence.complete_in(claim, session)
        user.add_effect(session)
        session.commit()
    assert (user.effects, user.bench.slot("plain")["outcome"]) == (1, "succeeded")


@pytest.mark.parametrize(
    "given", [None, "postgresql://", object()], ids=["None", "a text", "an object"]
)
def test_what_is_no_connection_is_refused(user: User, given: object) -> None:
    """With the type that was given."""
    with pytest.raises(
        ConfigurationError,
        match="cannot be joined; pass a Connection or Session of SQLAlchemy",
    ):
        user.fence.guard(claimed(user), given)


@pytest.mark.parametrize("where", ["engine", "connection"])
def test_autocommit_is_refused(user: User, where: str) -> None:
    """A guard that ends with its own statement guards nothing; however the connection came to
    commit by itself.
    """
    claim, url = claimed(user), str(user.bench.database.settings.database_url)
    options = {"isolation_level": "AUTOCOMMIT"} if where == "engine" else {}
    engine = user_engine(url, **options)
    with engine.connect() as connection:
        own = (
            connection.execution_options(isolation_level="AUTOCOMMIT")
            if where == "connection"
            else connection
        )
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            user.fence.guard(claim, own)
    engine.dispose()


# -- where locks are a row's ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", ["guard", "complete_in"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_heartbeat_between_snapshot_and_guard_does_no_harm(
    pg_user: User, level: str, verb: str, kind: str
) -> None:
    """A job longer than a heartbeat can commit, whatever its isolation level."""
    user, claim = pg_user, claimed(pg_user, kind)
    connection = user.transaction(level)
    user.bench.tick(0.2)
    assert user.bench.store.held.beat(claim.holder, [claim]) == set()
    getattr(user.fence, verb)(claim, connection)
    user.add_effect(connection)
    user.bench.tick(0.2)
    assert (
        user.bench.store.held.beat(claim.holder, [claim]) == set()
    )  # and one under the guard is not kept waiting
    assert user.bench.row(*claim.key).last_heartbeat == at(1.4)
    connection.commit()
    connection.close()
    assert user.effects == 1
    transition = user.bench.settle(claim, Succeeded(promised=verb == "complete_in"))
    assert transition is not None
    assert transition.label == "succeeded"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", ["guard", "complete_in"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_take_over_between_snapshot_and_guard_is_seen(
    pg_user: User, level: str, verb: str, kind: str
) -> None:
    """The snapshot still shows the old claim; the guard does not fall for it."""
    user, claim = pg_user, claimed(pg_user, kind)
    connection = user.transaction(level)
    user.add_effect(connection)
    user.bench.take_over(claim)
    user.bench.claim_one(kind, "host:2:b")
    with pytest.raises(ClaimLost):
        getattr(user.fence, verb)(claim, connection)
    connection.rollback()
    connection.close()
    assert user.effects == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", ["guard", "complete_in"])
@pytest.mark.parametrize("level", LEVELS)
def test_no_take_over_under_an_open_guard(
    pg_user: User, level: str, verb: str, kind: str
) -> None:
    """The reaper skips it, without waiting, until the user's transaction has ended."""
    user, claim = pg_user, claimed(pg_user, kind)
    connection = user.transaction(level)
    getattr(user.fence, verb)(claim, connection)
    user.bench.tick(10)
    assert user.bench.take_over(claim) == []
    user.add_effect(connection)
    connection.commit()
    connection.close()
    (taken,) = user.bench.take_over(claim)
    assert taken.transition is not None
    assert taken.transition.label == ("succeeded" if verb == "complete_in" else "lost")


def test_the_guard_of_a_frozen_holder_ends_with_its_lease(pg_user: User) -> None:
    """Its transaction is ended by the database, and with it the lock: nothing stays immortal."""
    user = pg_user
    claim = claimed(
        user, lease=timedelta(seconds=2)
    )  # its statements come in time, beside busy neighbours too
    connection = user.transaction("READ COMMITTED")
    user.fence.guard(claim, connection)
    slots = user.bench.tables.slots
    with user.engine.begin() as other:  # waits for the lock
        other.execute(sa.text("SET LOCAL statement_timeout = '20s'"))
        assert other.execute(sa.select(slots.c.token).with_for_update()).all()
    (taken,) = user.bench.take_over(claim)
    assert taken.transition is not None
    with pytest.raises(sa.exc.DBAPIError):
        user.add_effect(connection)
    connection.invalidate()
    connection.close()


def test_the_deadline_of_a_guard_ends_with_its_transaction(pg_user: User) -> None:
    """The application's next transaction on that connection is as idle as it likes."""
    user, claim = pg_user, claimed(pg_user)
    show = sa.text("SHOW idle_in_transaction_session_timeout")
    with user.engine.connect() as connection:
        before = connection.scalar(show)
        user.fence.guard(claim, connection)
        assert connection.scalar(show) == "1min"
        connection.commit()
        assert connection.scalar(show) == before


@pytest.mark.parametrize("verb", ["guard", "complete_in"])
def test_an_aborted_transaction_is_told(pg_user: User, verb: str) -> None:
    """It is the right database; what has gone wrong came before."""
    claim = claimed(pg_user)
    with pg_user.engine.connect() as connection:
        with pytest.raises(sa.exc.ProgrammingError):
            connection.execute(sa.text("SELECT nothere"))
        with pytest.raises(
            ConfigurationError, match=r"aborted by an error before.*roll back"
        ):
            getattr(pg_user.fence, verb)(claim, connection)
    assert pg_user.bench.settle(claim) is not None


def test_another_database_is_refused(pg_user: User, sqlite_url: str) -> None:
    """Work and settlement can only commit together in the database that holds the tables."""
    claim = claimed(pg_user)
    for url, words in (
        (sqlite_url, "leads to sqlite, the tables are in postgresql"),
        ("sqlite://", "leads to sqlite, the tables are in postgresql"),
    ):
        engine = user_engine(url)
        with (
            pytest.raises(ConfigurationError, match=words),
            engine.begin() as connection,
        ):
            pg_user.fence.guard(claim, connection)
        engine.dispose()


def test_tables_elsewhere_are_found(databases: object, pg_empty_url: str) -> None:
    """The application's search path need not know the schema of slotwise's tables."""
    from slotwise.operations import Schema

    database = Database(
        Settings(database_url=pg_empty_url, schema="jobs", table_prefix="sw_")
    )
    Schema.create_in(database)
    user = User(Bench(database).planned())
    claim = claimed(user)
    with user.engine.begin() as connection:
        user.fence.complete_in(claim, connection)
    assert user.bench.slot("plain")["outcome"] == "succeeded"
    user.engine.dispose()
    database.close()
