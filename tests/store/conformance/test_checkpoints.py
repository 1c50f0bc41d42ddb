"""Checkpoints: written under the claim's guard alone, with their types; gone with their slot."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from uuid import UUID

import psycopg
import pytest
import sqlalchemy as sa
import tenacity
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from tests.kit.records import AttemptOutcome, Failed, FollowUps, Succeeded
from tests.kit.store import LedgerFence, Pruner, checkpoints
from tests.store.bench import Bench, a_job, a_task, at, stale
from tests.store.conformance.test_guard import KINDS, LEVELS, User, claimed

from slotwise import (
    ClaimLost,
    ConfigurationError,
    InvalidPayload,
    JobContext,
    Retry,
)
from slotwise.spi import Claim, Database, Definition, Holding, elapsed

VALUES: list[object] = [
    None,
    0,
    -1.5,
    "ø\ud800",
    [],
    {},
    (),
    {"last": (7, UUID(int=7), [Decimal("1.50")])},
    datetime(2026, 1, 1, 12, 0, 0, 1, tzinfo=UTC),
    datetime(2026, 1, 1),  # noqa: DTZ001
    date(2026, 1, 1),
    time(12, 30),
    {"$UUID": "mine", "other": 1},
    {"$tuple": [1]},
    {"$dict": {"$tuple": ()}},
]


class Colour(StrEnum):
    RED = "red"


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


def context(user: User, claim: Claim) -> JobContext:
    return JobContext(Holding(claim, elapsed()), fence=user.fence)


def count(user: User) -> int:
    with user.bench.store.transaction() as connection:
        table = user.bench.tables.checkpoints
        return connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0


def retried(user: User, claim: Claim, kind: str) -> Claim:
    """The claim of the next attempt, after this one's worker died."""
    user.bench.take_over(claim)
    return user.bench.claim_one(kind, "host:2:b")


# -- what another attempt finds -------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_attempt_finds_it(user: User, kind: str) -> None:
    """Of a slot, and of a one-time task; the last one that was committed."""
    claim = claimed(user, kind)
    ctx = context(user, claim)
    assert ctx.last_checkpoint is None
    ctx.checkpoint(1)
    ctx.checkpoint(2)
    assert ctx.last_checkpoint == 2
    again = retried(user, claim, kind)
    ctx = context(user, again)
    assert ctx.last_checkpoint == 2
    ctx.checkpoint(3)
    assert (ctx.last_checkpoint, count(user)) == (3, 1)
    table = user.bench.tables.checkpoints
    with user.bench.store.transaction() as connection:
        assert connection.scalar(sa.select(table.c.token)) == again.token


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_its_types_are_kept(user: User, value: object) -> None:
    """Whatever it consists of."""
    ctx = context(user, claimed(user))
    ctx.checkpoint({"at": [value]})
    found = ctx.last_checkpoint
    assert (found, repr(found)) == ({"at": [value]}, repr({"at": [value]}))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"at": [object()]}, r"at\[0\]: object does not keep its type"),
        (Colour.RED, "Colour does not keep its type"),
        (timedelta(1), "timedelta does not keep its type"),
        ({1: 2}, "the key 1 is not a string"),
        (float("nan"), "cannot be written as JSON"),
        ("x" * 65_535, "has 65537 bytes, at most 65536 are allowed"),
    ],
    ids=["object", "enum", "timedelta", "key", "nan", "size"],
)
def test_what_would_come_back_otherwise_is_refused(
    user: User, value: object, words: str
) -> None:
    """With its place; what was saved before stays."""
    ctx = context(user, claimed(user))
    ctx.checkpoint(1)
    with pytest.raises(InvalidPayload, match=words):
        ctx.checkpoint(value)
    assert ctx.last_checkpoint == 1
    ctx.checkpoint("x" * 65_534)


def test_each_slot_has_its_own(user: User) -> None:
    """The next slot of a job begins anew, and leaves that of the one before alone."""
    claim = claimed(user)
    context(user, claim).checkpoint(1)
    user.bench.settle(claim, Failed("broken", final=True))
    user.bench.tick()
    ctx = context(user, user.bench.claim_one("plain"))
    assert ctx.last_checkpoint is None
    ctx.checkpoint(2)
    assert count(user) == 2


def test_another_life_of_an_id_begins_anew(user: User) -> None:
    """A one-time task that is scheduled again under the same id."""
    claim = claimed(user, "mail")
    context(user, claim).checkpoint(1)
    user.bench.settle(claim, Succeeded())  # as a release that knows no checkpoint
    user.bench.tick()
    assert context(user, claimed(user, "mail")).last_checkpoint is None


# -- whose claim is stale -------------------------------------------------------------------------


@pytest.mark.parametrize("joins", [False, True], ids=["at once", "joined"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["claimed again", "settled", "token", "holder"])
def test_a_stale_token_writes_nothing(
    user: User, kind: str, how: str, joins: bool
) -> None:
    """Race: a frozen worker wakes up after its slot was taken over."""
    claim = claimed(user, kind)
    context(user, claim).checkpoint("before")
    match how:
        case "claimed again":
            retried(user, claim, kind)
        case "settled":
            user.bench.settle(claim)
        case "token":
            claim = stale(claim, version=1)
        case "holder":
            claim = stale(claim, holder="host:2:b")
    ctx = context(user, claim)
    with pytest.raises(ClaimLost), user.engine.connect() as connection:
        ctx.checkpoint("late", connection if joins else None)
    assert ctx.last_checkpoint == "before"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", LEVELS)
def test_a_take_over_since_the_snapshot_is_seen(
    pg_user: User, level: str, kind: str
) -> None:
    """Race: the transaction still sees the old claim; nothing of it is committed."""
    user, claim = pg_user, claimed(pg_user, kind)
    connection = user.transaction(level)
    user.add_effect(connection)
    context(user, retried(user, claim, kind)).checkpoint("of the next")
    with pytest.raises(ClaimLost):
        context(user, claim).checkpoint("late", connection)
    connection.rollback()
    connection.close()
    assert context(user, claim).last_checkpoint == "of the next"
    assert user.effects == 0


@pytest.mark.parametrize("kind", KINDS)
def test_no_take_over_while_it_is_written(pg_user: User, kind: str) -> None:
    """Race: the reaper leaves a claim whose checkpoint is not committed yet; then it counts."""
    user, claim = pg_user, claimed(pg_user, kind)
    with user.engine.begin() as connection:
        context(user, claim).checkpoint(1, connection)
        user.bench.tick(10)
        assert user.bench.take_over(claim) == []
    assert context(user, retried(user, claim, kind)).last_checkpoint == 1


# -- in a transaction of the caller ---------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_it_joins_the_transaction(user: User, kind: str) -> None:
    """Work and checkpoint commit together, or neither."""
    claim = claimed(user, kind)
    ctx = context(user, claim)
    with user.engine.connect() as connection:
        user.add_effect(connection)
        ctx.checkpoint(1, connection)
        connection.rollback()
    assert (ctx.last_checkpoint, user.effects) == (None, 0)
    with Session(user.engine) as session:
        user.add_effect(session)
        ctx.checkpoint((2, Decimal("2.0")), session)
        session.commit()
    assert (ctx.last_checkpoint, user.effects) == ((2, Decimal("2.0")), 1)


def address(user: User) -> sa.URL:
    url = sa.make_url(str(user.bench.database.settings.database_url))
    return url.set(drivername="postgresql+psycopg")


def test_psycopg_will_do(pg_user: User) -> None:
    """Its connection is open from its guard to its commit."""
    ctx = context(pg_user, claimed(pg_user))
    text = address(pg_user).set(drivername="postgresql").render_as_string(False)
    with psycopg.connect(text) as own:
        ctx.checkpoint({"id": UUID(int=1)}, own)
        with pytest.raises(ConfigurationError, match="or commit first"):
            ctx.checkpoint(2)
        own.commit()
        ctx.checkpoint(2)
    assert ctx.last_checkpoint == 2


def test_an_async_connection_is_awaited(pg_user: User) -> None:
    """And is open until its transaction ends."""
    ctx = context(pg_user, claimed(pg_user))

    async def work() -> None:
        engine = create_async_engine(address(pg_user), poolclass=sa.NullPool)
        async with engine.connect() as connection:
            await ctx.checkpoint((1,), connection)
            with pytest.raises(ConfigurationError, match="or commit first"):
                await asyncio.to_thread(ctx.checkpoint, 2)
            await connection.commit()
            await asyncio.to_thread(ctx.checkpoint, [ctx.last_checkpoint])

    asyncio.run(work())
    assert ctx.last_checkpoint == [(1,)]


@pytest.mark.parametrize("word", ["guard", "checkpoint"])
@pytest.mark.parametrize("kind", ["connection", "session", "scoped session"])
def test_it_is_refused_beside_an_open_guard(user: User, kind: str, word: str) -> None:
    """The guarded work may still roll back, and would be lost behind the checkpoint."""
    ctx = context(user, claimed(user))
    own = {
        "connection": user.engine.connect,
        "session": lambda: Session(user.engine),
        "scoped session": lambda: scoped_session(sessionmaker(user.engine)),
    }[kind]()
    given = (own,) if word == "guard" else (1, own)
    for end in (own.rollback, own.commit):
        getattr(ctx, word)(*given)
        with pytest.raises(ConfigurationError, match="or commit first"):
            ctx.checkpoint("early")
        end()
        ctx.checkpoint("between")
        assert ctx.last_checkpoint == "between"
    own.close()


# -- its end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_success_deletes_it(user: User, kind: str) -> None:
    """With the settlement; that of another slot stays."""
    claim = claimed(user, kind)
    context(user, claim).checkpoint(1)
    left = FollowUps(checkpointed=True)
    user.bench.settle(claim, Succeeded(follow_ups=left))
    assert count(user) == 0


@pytest.mark.parametrize(
    ("outcome", "kept"),
    [(Succeeded(), 0), (Failed("broken", final=True), 1)],
    ids=["succeeded", "failed"],
)
def test_the_pruner_deletes_what_is_left_of_slots(
    user: User, outcome: AttemptOutcome, kept: int
) -> None:
    """That of a slot that failed stays for an operator's retry, until the slot is deleted."""
    claim = claimed(user)
    context(user, claim).checkpoint(1)
    assert orphans(user) == 0
    user.bench.settle(claim, outcome)
    assert (orphans(user), count(user)) == (1 - kept, kept)
    slots = user.bench.tables.slots
    with user.bench.store.transaction() as connection:
        connection.execute(slots.delete())
    assert (orphans(user), count(user)) == (kept, 0)


def test_the_pruner_deletes_what_is_left_of_tasks(user: User) -> None:
    """As soon as the task is gone."""
    claim = claimed(user, "mail")
    context(user, claim).checkpoint(1)
    assert orphans(user) == 0
    user.bench.settle(claim, Succeeded())
    pruner = Pruner(
        user.bench.store, keep=timedelta(0), failure_retention=timedelta(0)
    )
    assert pruner.take_turn(timedelta(hours=1))
    list(pruner.pages())
    assert count(user) == 0


def orphans(user: User) -> int:
    with user.bench.store.transact() as at:
        return checkpoints.delete_orphans(at, 10)


def test_what_another_program_wrote_is_told(user: User) -> None:
    """And not taken for a beginning."""
    ctx = context(user, claimed(user))
    ctx.checkpoint(1)
    table = user.bench.tables.checkpoints
    with user.bench.store.transaction() as connection:
        connection.execute(table.update().values(value=b"\xac\xed"))
    with pytest.raises(InvalidPayload, match="the checkpoint cannot be read"):
        _ = ctx.last_checkpoint


def test_it_needs_the_workers_database(user: User, database: Database) -> None:
    """Elsewhere it would guard nothing."""
    ctx = context(user, claimed(user))
    engine = sa.create_engine("sqlite://")
    with (
        engine.connect() as own,
        pytest.raises(ConfigurationError, match=r"does not reach|the tables are in"),
    ):
        ctx.checkpoint(1, own)


# -- cost -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_from_the_second_time_on_it_is_one_statement(pg_user: User, kind: str) -> None:
    """Guard and checkpoint together. The first one asks where the connection leads."""
    ctx = context(pg_user, claimed(pg_user, kind))
    sent: list[str] = []
    sa.event.listen(
        pg_user.engine,
        "before_cursor_execute",
        lambda _1, _2, statement, *_: sent.append(statement),
    )
    for number in range(3):
        sent.clear()
        with pg_user.engine.begin() as own:
            ctx.checkpoint(number, own)
            if number:
                assert len(sent) == 1
            sent.clear()
            ctx.guard(own)
            assert len(sent) == 1
    assert ctx.last_checkpoint == 2


def test_a_frozen_holder_keeps_no_checkpoint_locked(pg_user: User) -> None:
    """As with a guard alone, the server ends its transaction after the lease."""
    ctx = context(pg_user, claimed(pg_user))
    with pg_user.engine.begin() as own:
        ctx.checkpoint(1, own)
        idle = own.scalar(sa.text("SHOW idle_in_transaction_session_timeout"))
    assert idle == "1min"


def test_an_aborted_transaction_is_told_whenever_it_is_met(pg_user: User) -> None:
    """Also on an address that was asked before."""
    ctx = context(pg_user, claimed(pg_user))
    with pg_user.engine.begin() as own:
        ctx.guard(own)
    with pg_user.engine.connect() as own:
        with pytest.raises(sa.exc.ProgrammingError):
            own.execute(sa.text("SELECT nothere"))
        with pytest.raises(ConfigurationError, match="aborted by an error before"):
            ctx.checkpoint(1, own)
    assert ctx.last_checkpoint is None


def test_a_connection_that_is_guarded_often_is_remembered_once(pg_user: User) -> None:
    """Else each of many batches on one connection takes longer than the one before it."""
    fence = Counting(pg_user.bench.store)
    ctx = JobContext(Holding(claimed(pg_user), elapsed()), fence=fence)
    url = pg_user.engine.url.set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(False)) as own:
        for _ in range(20):
            with own.transaction():
                ctx.guard(own)
    assert fence.asked < 5


class Counting(LedgerFence):
    asked = 0

    def is_open(self, connection: object) -> bool:
        self.asked += 1
        return super().is_open(connection)


# -- progress -------------------------------------------------------------------------------------


@pytest.mark.parametrize("joins", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_progress_is_kept_beside_it(user: User, kind: str, joins: bool) -> None:
    """Each checkpoint tells it anew, and only by whole numbers."""
    ctx = context(user, claimed(user, kind))
    for value, shown in (
        ({"done": 1, "total": 9, "last": "a"}, (1, 9)),
        ({"done": 5, "total": True}, (5, None)),
        ({"done": -1, "total": 2**63}, (None, None)),
        ({"done": "7", "total": 7}, (None, 7)),
        (7, (None, None)),
    ):
        if joins:
            with user.engine.begin() as own:
                ctx.checkpoint(value, own)
        else:
            ctx.checkpoint(value)
        counts = user.bench.tables.checkpoints.c
        with user.bench.store.transaction() as connection:
            found = connection.execute(sa.select(counts.done, counts.total)).one()
        assert found == shown
        assert ctx.last_checkpoint == value


# -- attempts that made progress ------------------------------------------------------------------


def restless(kind: str, *, resets: bool) -> Definition:
    """Two attempts, and two losses."""
    policies = {
        "retry": Retry(
            max_attempts=2,
            wait=tenacity.wait_none(),
            past_next_slot=True,
            resets_on_progress=resets,
        ),
        "max_lost": 2,
    }
    return (
        a_job("restless", **policies)
        if kind == "job"
        else a_task("restless", **policies)
    )


@pytest.mark.parametrize("how", ["fails", "is lost"])
@pytest.mark.parametrize("kind", ["job", "task"])
@pytest.mark.parametrize("resets", [True, False])
def test_progress_resets_the_count_of_attempts(
    bench: Bench, kind: str, how: str, resets: bool
) -> None:
    """If ``retry`` says so: then the slot ends only when two attempts come to nothing in a row."""
    user = User(bench.beside(restless(kind, resets=resets)))
    if kind == "task":
        user.bench.client.schedule("restless", id="1", at=at(1))
    else:
        user.bench.planned()

    def attempt(*, saves: bool) -> bool:
        """Make an attempt; return whether another one follows."""
        user.bench.tick(10)
        claim = user.bench.claim_one("restless")
        if saves:
            context(user, claim).checkpoint(claim.row.attempt)
        if how == "fails":
            found = user.bench.settle(claim, Failed("broken"))
        else:
            # A reaper knows of a row only what it needs to see that its holder is silent.
            _, silent = user.bench.store.held.silent_rows(["restless"])
            (settlement,) = user.bench.store.settlements.take_over(silent)
            found = settlement.transition
        assert found is not None
        return found.label in ("failed", "lost") and not (
            found.record is not None and found.record.final
        )

    assert attempt(saves=True)
    if not resets:
        assert not attempt(saves=True)
        user.engine.dispose()
        return
    assert attempt(saves=True)
    assert attempt(saves=True)
    assert not attempt(saves=False)
    user.engine.dispose()
