"""Rows at the edge of a batch, pauses, totals, and rows in another database."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import nullcontext
from itertools import pairwise

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from tests.contrib.batches.shop import ELIGIBLE, Base, Card, Proposal, Shop, make_cards

from slotwise import JobContext, Retry
from slotwise.contrib.batches import batches, pacing
from slotwise.spi import Settled, elapsed

EVERY = sa.select(Proposal)


def walked(
    shop: Shop, select: sa.Select[Proposal] = EVERY, **options: object
) -> Settled:
    """Give each row a card, without a mark at the row; return how the slot was settled."""

    def execute(ctx: JobContext) -> None:
        for batch in batches(ctx, select, shop.sessions, **options):  # type: ignore[arg-type]
            with batch as proposals:
                batch.session.add_all(Card(proposal_id=one.id) for one in proposals)

    (ended,) = shop.run(execute)
    return ended


# -- rows that a cursor could lose ----------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4, 100])
def test_equal_values_across_the_edge_of_a_batch(shop: Shop, size: int) -> None:
    """Three rows each have the same instant; the key breaks the tie."""
    shop.add(12)
    ended = walked(shop, size=size, order=Proposal.created_at, cursor=True)
    assert ended.outcome == "succeeded", ended
    assert Counter(shop.carded()) == dict.fromkeys(range(1, 13), 1)


def test_a_null_in_the_order_is_refused_before_the_first_batch(shop: Shop) -> None:
    """With the cure, and nothing done; the rows without it are walked by themselves."""
    shop.add(6)
    with shop.engine.begin() as connection:
        connection.execute(
            sa.update(Proposal).where(Proposal.id == 4).values(region=None)
        )
    options = {"size": 2, "order": Proposal.region, "cursor": True}
    ended = walked(shop, **options)
    assert ended.outcome == "failed"
    assert "has NULL in a column of its order" in (ended.error or "")
    assert "leave such rows out" in (ended.error or "")
    assert shop.carded() == []
    ended = walked(shop, EVERY.where(Proposal.region.is_not(None)), **options)
    assert ended.outcome == "succeeded", ended
    assert sorted(shop.carded()) == [1, 2, 3, 5, 6]


def test_a_key_that_is_not_unique_is_refused(shop: Shop) -> None:
    """Where its rows meet in one batch, and where the edge of a batch parts them."""
    shop.add(9)
    options = {"key": Proposal.region, "order": Proposal.region, "cursor": True}
    ended = walked(shop, size=4, **options)
    assert "two rows have the key 'at'; key= needs columns that are unique" in (
        ended.error or ""
    )
    assert shop.carded() == []


@pytest.mark.parametrize("cursor", [False, True], ids=["status", "cursor"])
def test_a_select_without_an_order_goes_by_the_key(shop: Shop, cursor: bool) -> None:
    shop.add(9)

    def execute(ctx: JobContext) -> None:
        select = EVERY if cursor else ELIGIBLE
        for batch in batches(ctx, select, shop.sessions, size=4, cursor=cursor):
            with batch as proposals:
                make_cards(batch.session, [*proposals])

    (ended,) = shop.run(execute)
    assert ended.outcome == "succeeded", ended
    assert shop.carded() == [*range(1, 10)]


@pytest.mark.parametrize("size", [0, -1, 100_001, 10**9, True, "50"])
def test_a_batch_that_memory_would_not_hold_is_refused(
    shop: Shop, size: object
) -> None:
    """Before a row is read."""
    ended = walked(shop, size=size)
    assert f"size={size!r}: expected a whole number of rows, 1 to 100,000" in (
        ended.error or ""
    )


# -- a deploy that changes the table --------------------------------------------------------------


@pytest.mark.parametrize("columns", ["*", "id, status"])
def test_a_column_that_is_added_meanwhile_ends_no_walk(
    shop: Shop, columns: str
) -> None:
    """Also where the driver has prepared the statement on a connection that stays open."""
    shop.add(10)
    driver = psycopg.connect(shop.url)
    seen: list[int] = []

    def execute(ctx: JobContext) -> None:
        wanted = f"SELECT {columns} FROM proposals WHERE status = 'eligible'"
        for batch in batches(
            ctx, wanted, lambda: nullcontext(driver), key="id", size=1
        ):
            with batch as rows:
                seen.extend(row["id"] for row in rows)
                done = "UPDATE proposals SET status = 'done' WHERE id = %s"
                batch.connection.execute(done, [rows[0]["id"]])
            if len(seen) == 8:
                with shop.engine.begin() as other:
                    other.execute(
                        sa.text("ALTER TABLE proposals ADD COLUMN note text")
                    )

    (ended,) = shop.run(execute)
    driver.close()
    assert ended.outcome == "succeeded", ended
    assert seen == [*range(1, 11)]


# -- pauses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", [{"pause": "50ms"}, {"rate": "80/s"}], ids=str)
def test_batches_are_paused(shop: Shop, option: dict[str, object]) -> None:
    """By a fixed pause, or so that no more rows than these are processed in a period."""
    shop.add(12)
    begun: list[float] = []

    def execute(ctx: JobContext) -> None:
        for batch in batches(ctx, ELIGIBLE, shop.sessions, size=4, **option):  # type: ignore[arg-type]
            begun.append(elapsed())
            with batch as proposals:
                make_cards(batch.session, [*proposals])

    shop.run(execute)
    assert len(begun) == 3
    assert min(later - earlier for earlier, later in pairwise(begun)) >= 0.049


def test_no_batch_begins_while_a_replica_is_behind(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["slotwise.contrib.batches.batches"]  # beside the function
    monkeypatch.setattr(module, "LOOK_AGAIN", 0.01)
    shop.add(8)
    behind = [False, True, True, False, False, False]
    seen: list[tuple[int, int]] = []

    def is_behind() -> bool:
        seen.append((len(behind), len(shop.carded())))
        return behind.pop(0)

    def execute(ctx: JobContext) -> None:
        found = batches(ctx, ELIGIBLE, shop.sessions, size=4, wait_while=is_behind)
        for batch in found:
            with batch as proposals:
                make_cards(batch.session, [*proposals])

    (ended,) = shop.run(execute)
    assert ended.outcome == "succeeded", ended
    assert [done for _, done in seen][:5] == [0, 4, 4, 4, 8]


def test_the_lag_of_a_replica_is_read(shop: Shop) -> None:
    """Without a replica there is none."""
    assert pacing.replica_is_behind(shop.engine, "1s")() is False


# -- the second look at rows that failed ----------------------------------------------------------


def test_many_bad_rows_do_not_end_the_second_look(shop: Shop) -> None:
    """Ten in a row end an attempt only while rows are taken for the first time: a good row
    between them says that the cause is theirs.
    """
    shop.add(40)
    bad = {n for n in range(1, 41) if n % 3}

    def execute(ctx: JobContext) -> None:
        for batch in batches(
            ctx, ELIGIBLE, shop.sessions, size=1, tries=2, retry_pause="0s"
        ):
            with batch as proposals:
                if proposals[0].id in bad:
                    raise ValueError("bad")
                make_cards(batch.session, [*proposals])

    (ended,) = shop.run(execute, retry=Retry(max_attempts=1))
    assert ended.outcome == "succeeded", ended
    assert shop.carded() == [n for n in range(1, 41) if n not in bad]


# -- rows in another database ---------------------------------------------------------------------


@pytest.fixture
def elsewhere(shop: Shop, pg_empty_url: str) -> Shop:
    """The same tables in a database without slotwise's; cards there are unique."""
    address = sa.make_url(pg_empty_url).set(drivername="postgresql+psycopg")
    found = object.__new__(Shop)
    found.url, found.clock = shop.url, shop.clock
    found.engine = sa.create_engine(address)
    found.sessions = orm.sessionmaker(found.engine)
    Base.metadata.create_all(found.engine)
    with found.engine.begin() as connection:
        connection.execute(sa.text("CREATE UNIQUE INDEX ON cards (proposal_id)"))
    return found


CARD = (
    "INSERT INTO cards (proposal_id) SELECT unnest(%s::int[]) ON CONFLICT DO NOTHING"
)


def test_a_guard_there_is_refused_with_the_cure(elsewhere: Shop) -> None:
    elsewhere.add(3)
    ended = walked(elsewhere)
    assert ended.outcome == "failed"
    assert "does not reach scheduled_meta" in (ended.error or "")
    assert "batches(…, guard=False)" in (ended.error or "")
    assert elsewhere.carded() == []
    elsewhere.engine.dispose()


def test_a_unique_key_makes_a_batch_that_runs_twice_harmless(
    elsewhere: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the commit there, and before the checkpoint here."""
    elsewhere.add(9)
    taken: list[int] = []
    kills = [True]
    save = JobContext.checkpoint

    def checkpoint(ctx: JobContext, *given: object) -> object:
        if kills and len(taken) == 8:
            kills.clear()
            raise MemoryError
        return save(ctx, *given)  # type: ignore[call-overload]

    monkeypatch.setattr(JobContext, "checkpoint", checkpoint)
    address = elsewhere.engine.url.set(drivername="postgresql")

    def execute(ctx: JobContext) -> None:
        found = batches(
            ctx,
            "SELECT id FROM proposals",
            lambda: psycopg.connect(address.render_as_string(False)),
            key="id",
            size=4,
            cursor=True,
            guard=False,
            tries=0,
        )
        for batch in found:
            with batch as rows:
                ids = [row["id"] for row in rows]
                taken.extend(ids)
                batch.connection.execute(CARD, [ids])

    retry = Retry(max_attempts=2, wait=lambda _: 0.0, past_next_slot=True)
    ended = elsewhere.run(execute, times=2, step="40m", retry=retry)
    assert ended[-1].outcome == "succeeded", ended
    assert Counter(taken) == {n: 2 if 4 < n < 9 else 1 for n in range(1, 10)}
    assert sorted(elsewhere.carded()) == [*range(1, 10)]
    elsewhere.engine.dispose()
