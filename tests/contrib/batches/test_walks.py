"""What a walk does beside the plain case: rows that fail, cursors, budgets, deploys, bad input."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import create_async_engine
from tests.contrib.batches.shop import (
    ELIGIBLE,
    START,
    Card,
    Proposal,
    Shop,
    make_cards,
)

from slotwise import (
    Client,
    ConfigurationError,
    Daily,
    JobContext,
    JobRegistry,
    Retry,
    TaskContext,
)
from slotwise.contrib.batches import (
    AsideState,
    Batch,
    BatchJob,
    BatchTask,
    SetAside,
    batches,
    in_parallel,
    run,
    set_aside,
)
from slotwise.testing import ManualWorker

EVERY = sa.select(Proposal)


def fail_at(*poisoned: int):
    """Make cards of a batch, but for these proposals."""

    def process(session: orm.Session, proposals: list[Proposal]) -> None:
        for one in proposals:
            if one.id in poisoned:
                raise ValueError(f"no card for {one.id}")
        make_cards(session, proposals)

    return process


def aside(shop: Shop) -> dict[str, tuple[AsideState, int]]:
    with Client.open(shop.url) as client:
        rows = SetAside(client).listed()
        return {row.key: (row.state, row.tries) for row in rows}


def cards(shop: Shop, process=make_cards, select=ELIGIBLE, **options):
    def execute(ctx: JobContext) -> None:
        for batch in batches(
            ctx, select, shop.sessions, retry_pause="0s", **{"size": 4, **options}
        ):
            with batch as proposals:
                process(batch.session, [*proposals])

    return execute


def note_cards(session: orm.Session, proposals: list[Proposal]) -> None:
    """Make cards, and leave no mark at the proposals."""
    session.add_all(Card(proposal_id=one.id) for one in proposals)


# -- rows that fail -------------------------------------------------------------------------------


@pytest.mark.parametrize("cursor", [False, True], ids=["status", "cursor"])
def test_rows_that_fail_are_set_aside_and_the_others_go_on(
    shop: Shop, cursor: bool
) -> None:
    """By halving their batches: also two in one batch, the first and the last."""
    shop.add(20)
    process = fail_at(1, 6, 7, 20)
    select = EVERY if cursor else ELIGIBLE
    (ended,) = shop.run(cards(shop, process, select, cursor=cursor, size=8))
    assert ended.outcome == "succeeded", ended
    assert sorted(shop.carded()) == sorted({*range(1, 21)} - {1, 6, 7, 20})
    assert aside(shop) == dict.fromkeys(
        ["1", "6", "7", "20"], (AsideState.SET_ASIDE, 3)
    )


@pytest.mark.parametrize("cursor", [False, True], ids=["status", "cursor"])
def test_a_row_that_fails_once_is_processed_in_the_end(
    shop: Shop, cursor: bool
) -> None:
    shop.add(9)
    tried = []

    def process(session: orm.Session, proposals: list[Proposal]) -> None:
        ids = [one.id for one in proposals]
        if 5 in ids:
            tried.append(ids)
            if tried.count([5]) < 2:
                raise OSError("the service is away")
        make_cards(session, proposals)

    select = EVERY if cursor else ELIGIBLE
    (ended,) = shop.run(cards(shop, process, select, cursor=cursor))
    assert ended.outcome == "succeeded", ended
    assert sorted(shop.carded()) == [*range(1, 10)]
    assert tried[-2:] == [[5], [5]]
    assert aside(shop) == {}


def test_what_was_set_aside_stays_out_until_it_is_retried_or_dropped(
    shop: Shop,
) -> None:
    shop.add(6)
    handler = cards(shop, fail_at(2, 3))
    shop.run(handler)
    seen = []

    def process(session: orm.Session, proposals: list[Proposal]) -> None:
        seen.extend(one.id for one in proposals)
        make_cards(session, proposals)

    shop.run(cards(shop, process))
    assert seen == []
    with Client.open(shop.url) as client:
        table = SetAside(client)
        assert table.retry("cards", ["2"]) == 1
        assert table.drop("cards", ["3"]) == 1
    shop.run(cards(shop, process))
    assert (seen, aside(shop)) == ([2], {})
    assert shop.statuses() == {"done": [1, 2, 4, 5, 6], "eligible": [3]}


def test_a_callable_takes_the_rows_in_place_of_the_table(shop: Shop) -> None:
    """In a transaction of its own; the error and the key are given."""
    shop.add(5)
    taken = []

    def set_aside(
        session: orm.Session, key: tuple[object, ...], error: Exception
    ) -> None:
        taken.append((key, str(error)))
        session.get_one(Proposal, key).status = "failed"

    shop.run(cards(shop, fail_at(4), set_aside=set_aside, tries=2))
    assert taken == [((4,), "no card for 4")]
    assert shop.statuses() == {"done": [1, 2, 3, 5], "failed": [4]}
    assert aside(shop) == {}


def test_ten_rows_in_a_row_end_the_attempt(shop: Shop) -> None:
    """Then not the rows are to blame."""
    shop.add(30)
    (ended,) = shop.run(cards(shop, fail_at(*range(1, 31)), size=16))
    assert (ended.outcome, shop.carded()) == ("failed", [])
    assert len(aside(shop)) == 10


def test_without_tries_the_first_error_ends_the_attempt(shop: Shop) -> None:
    shop.add(9)
    (ended,) = shop.run(cards(shop, fail_at(6), tries=0))
    assert (ended.outcome, shop.carded()) == ("failed", [1, 2, 3, 4])
    assert aside(shop) == {}


# -- cursors --------------------------------------------------------------------------------------

ORDERS = [
    (Proposal.created_at,),
    (Proposal.created_at.desc(),),
    (Proposal.region, Proposal.created_at.desc()),
    (Proposal.region.desc(), Proposal.created_at, Proposal.id.desc()),
]


@pytest.mark.parametrize("order", ORDERS, ids=range(len(ORDERS)))
def test_a_cursor_goes_on_where_an_attempt_has_failed(
    shop: Shop, order: tuple[sa.ColumnElement[object], ...]
) -> None:
    """In any order; each row once."""
    shop.add(23)
    fails = [True]

    def process(session: orm.Session, proposals: list[Proposal]) -> None:
        if len(shop.carded()) == 10 and fails:
            fails.clear()
            raise MemoryError
        note_cards(session, proposals)

    handler = cards(shop, process, EVERY, cursor=True, size=5, order=order, tries=0)
    retry = Retry(max_attempts=2, wait=lambda state: 0.0)
    ended = shop.run(
        handler, times=2, step="15h", schedule=Daily("12:00", tz="UTC"), retry=retry
    )
    assert [one.outcome for one in ended] == ["failed", "succeeded"]
    with shop.sessions() as session:
        wanted = EVERY.order_by(
            *order, Proposal.id.desc() if order == ORDERS[1] else Proposal.id
        )
        if order == ORDERS[2]:
            wanted = EVERY.order_by(*order, Proposal.id.desc())
        if order == ORDERS[3]:
            wanted = EVERY.order_by(*order)
        expected = [one.id for one in session.scalars(wanted)]
    assert shop.carded() == expected


def test_a_budget_hands_the_cursor_to_the_same_slot(shop: Shop) -> None:
    """Which goes on after the pause; without that pause, the budget is refused."""
    shop.add(10)
    handler = cards(
        shop, note_cards, EVERY, cursor=True, max_batches=2, resume_after="10m"
    )
    ended = shop.run(handler, times=2, step="15h", schedule=Daily("12:00", tz="UTC"))
    assert [one.outcome for one in ended] == ["snoozed", "succeeded"]
    assert shop.carded() == [*range(1, 11)]
    (refused,) = shop.run(cards(shop, note_cards, EVERY, cursor=True, max_batches=2))
    assert 'pass resume_after="1h"' in (refused.error or "")


def test_rows_locked_by_others_are_waited_for(shop: Shop) -> None:
    """A cursor that skipped them would lose them."""
    shop.add(5)
    handler = cards(shop, note_cards, EVERY, cursor=True)
    with shop.worker(handler) as worker, shop.engine.connect() as other:
        other.execute(sa.text("SET lock_timeout = '5s'"))
        other.execute(EVERY.where(Proposal.id == 2).with_for_update())
        worker.tick("1h")
        thread = threading.Thread(target=worker.run_due)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        other.rollback()
        thread.join(20)
    assert shop.carded() == [1, 2, 3, 4, 5]


# -- budgets and deploys --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "budget",
    [
        {"max_batches": 2},
        {"time_budget": datetime(2026, 1, 1, tzinfo=UTC), "max_batches": None},
        {"time_budget": "0s"},
    ],
    ids=["batches", "instant", "duration"],
)
def test_a_budget_ends_the_slot_and_the_next_one_goes_on(
    shop: Shop, budget: dict[str, object]
) -> None:
    shop.add(10)
    counts = []

    def execute(ctx: JobContext) -> None:
        cards(shop, **budget)(ctx)
        counts.append(len(shop.carded()))

    ended = shop.run(execute, times=2)
    assert [one.outcome for one in ended] == ["succeeded"] * 2
    assert counts == ([8, 10] if budget.get("max_batches") else [0, 0])


def test_the_databases_clock_ends_a_budget_and_dates_failures(shop: Shop) -> None:
    """It is January there; the host's clock is not asked."""
    shop.add(3)
    shop.run(
        cards(shop, fail_at(2), tries=1, time_budget=START + timedelta(minutes=90))
    )
    assert shop.carded() == [1, 3]
    with Client.open(shop.url) as client:
        (row,) = SetAside(client).listed()
    assert row.last_failed == row.first_failed == START + timedelta(hours=1)


def test_a_drain_ends_the_run_by_resume(shop: Shop) -> None:
    shop.add(10)

    def execute(ctx: JobContext) -> None:
        ctx._stopping = lambda: ctx.attempt == 1 and bool(shop.carded())
        cards(shop)(ctx)

    ended = shop.run(execute)
    assert [one.outcome for one in ended] == ["snoozed", "succeeded"]
    assert [one.attempt for one in ended] == [1, 2]
    assert shop.carded() == [*range(1, 11)]


# -- two workers ----------------------------------------------------------------------------------


def test_locked_rows_are_left_to_who_has_locked_them(shop: Shop) -> None:
    shop.add(6)
    with shop.engine.connect() as other:
        other.execute(ELIGIBLE.where(Proposal.id.in_([2, 3])).with_for_update())
        shop.run(cards(shop, wait_for_locked="0s"))
        assert shop.carded() == [1, 4, 5, 6]


def test_a_run_does_not_end_while_others_may_give_rows_back(shop: Shop) -> None:
    """As a frozen worker does, whose claim is lost when it thaws."""
    shop.add(6)
    with shop.engine.connect() as other:
        other.execute(ELIGIBLE.where(Proposal.id.in_([2, 3])).with_for_update())
        giving_back = threading.Timer(0.2, other.rollback)

        def process(session: orm.Session, proposals: list[Proposal]) -> None:
            make_cards(session, proposals)
            if proposals[0].id == 1:
                giving_back.start()

        shop.run(cards(shop, process))
        giving_back.join()
    assert shop.carded() == [1, 4, 5, 6, 2, 3]


def test_a_stale_claim_commits_nothing(shop: Shop) -> None:
    shop.add(6)

    def execute(ctx: JobContext) -> None:
        def process(session: orm.Session, proposals: list[Proposal]) -> None:
            make_cards(session, proposals)
            with shop.engine.begin() as other:
                other.execute(sa.text("UPDATE scheduled_slots SET token = token + 1"))

        cards(shop, process)(ctx)

    shop.run(execute)
    assert shop.carded() == []


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 0}, "size=0: expected a whole number of rows, 1 to 100,000"),
        ({"size": 10_000_000}, "all rows of a batch are in memory at once"),
        ({"time_budgt": "1s"}, "no keyword 'time_budgt'; did you mean time_budget?"),
        ({"tries": -1}, "tries=-1: expected a whole number"),
        ({"rate": "fast"}, "rate='fast': write rows and a period"),
        ({"max_batches": 0}, "max_batches=0: expected a whole number"),
        ({"time_budget": datetime(2026, 1, 1)}, "has no offset"),  # noqa: DTZ001
        ({"order": "created_at"}, "is no column to order by"),
        ({"order": Proposal.region, "cursor": True}, "NULL in a column of its order"),
        ({"key": Proposal.status}, "two rows have the key 'eligible'"),
        ({"select": ELIGIBLE.limit(5)}, "select has a limit or FOR UPDATE already"),
        ({"select": EVERY, "process": note_cards}, "was processed and still matches"),
        ({"select": 17}, "batches(select=17): pass a select"),
        ({"select": sa.text("SELECT 1")}, "pass a select of SQLAlchemy"),
        (
            {"select": "SELECT * FROM proposals"},
            "select is text, so key= must name columns",
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else None,
)
def test_bad_input_is_one_line(
    shop: Shop, options: dict[str, object], words: str
) -> None:
    shop.add(6)
    if "NULL" in words:
        with shop.engine.begin() as connection:
            connection.execute(
                sa.update(Proposal).where(Proposal.id == 3).values(region=None)
            )
    options = dict(options)
    process = options.pop("process", make_cards)
    (ended,) = shop.run(
        cards(shop, process, options.pop("select", ELIGIBLE), **options)
    )
    assert ended.outcome == "failed"
    assert words in (ended.error or "")
    assert len(shop.carded()) <= 4


def test_a_misspelled_option_is_found_where_it_is_declared() -> None:
    """Not at night, by a clean-up that does not stop."""
    with pytest.raises(ConfigurationError, match=r"Purge\.options .* 'resume_afer'"):

        class Purge(BatchJob):
            options: ClassVar[Mapping[str, object]] = {"resume_afer": "1h"}


# -- outages and kills ----------------------------------------------------------------------------


def test_many_runs_without_a_service_stop_no_later_run(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them notes ten rows at most, and from a number on none."""
    monkeypatch.setattr(set_aside, "MOST", 30)
    monkeypatch.setattr(run, "MOST", 30)
    shop.add(60)
    is_away = [True]

    def process(session: orm.Session, proposals: list[Proposal]) -> None:
        if is_away:
            raise OSError("the service is away")
        make_cards(session, proposals)

    handler = cards(shop, process, size=1)
    away = shop.run(handler, times=5)
    assert {one.error for one in away} == {"OSError: the service is away"}
    assert len(aside(shop)) < 30
    is_away.clear()
    (ended,) = shop.run(handler)
    assert ended.outcome == "succeeded", ended
    assert sorted(shop.carded()) == [*range(1, 61)]
    assert aside(shop) == {}


@pytest.mark.parametrize("cursor", [False, True], ids=["status", "cursor"])
def test_more_bad_rows_than_the_limit_are_given_back_by_a_command(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, cursor: bool
) -> None:
    """Those that fail are tried again in portions, and ``retry`` or ``drop`` free the job."""
    monkeypatch.setattr(set_aside, "MOST", 4)
    monkeypatch.setattr(run, "MOST", 4)
    shop.add(20)
    bad = {*range(2, 21, 2)}
    select = EVERY if cursor else ELIGIBLE

    def process(session: orm.Session, proposals: list[Proposal]) -> None:
        fail_at(*bad)(session, proposals)

    handler = cards(shop, process, select, cursor=cursor, size=1)
    (ended,) = shop.run(handler, retry=Retry(max_attempts=1))
    assert "slotwise batches drop cards --all" in (ended.error or "")
    with Client.open(shop.url) as client:
        table = SetAside(client)
        assert table.drop("cards", ["2"]) == 1
        assert table.retry("cards", None) == len(aside(shop))
    bad.clear()
    (ended,) = shop.run(handler)
    assert ended.outcome == "succeeded", ended
    assert {*shop.carded()} == {*range(1, 21)} - {2}
    assert aside(shop) == {}


def test_a_row_is_not_set_aside_before_the_function_has_taken_it(shop: Shop) -> None:
    """Else a kill between the two would leave it to nobody."""
    shop.add(3)
    taken = []

    def set_aside(
        session: orm.Session, key: tuple[object, ...], error: Exception
    ) -> None:
        if not taken:
            taken.append(key)
            raise KeyboardInterrupt
        session.get_one(Proposal, key).status = "failed"

    handler = cards(shop, fail_at(2), set_aside=set_aside, tries=1)
    shop.run(handler, retry=Retry(max_attempts=1))
    assert aside(shop) == {"2": (AsideState.FAILING, 1)}
    shop.run(handler)
    assert shop.statuses() == {"done": [1, 3], "failed": [2]}
    assert aside(shop) == {}


@pytest.mark.parametrize(
    ("when", "outcomes"),
    [("after_commit", ["succeeded"] * 2), ("before_commit", ["failed", "succeeded"])],
)
def test_a_lost_reply_to_commit_counts_no_batch_twice(
    shop: Shop, when: str, outcomes: list[str]
) -> None:
    """The checkpoint says whether the server has committed; else the next attempt goes on."""
    shop.add(8)
    lost = []

    @sa.event.listens_for(shop.sessions, when)
    def lose(session: orm.Session) -> None:
        if not lost and any(isinstance(one, Proposal) for one in session):
            lost.append(True)
            reply = psycopg.OperationalError(
                "server closed the connection unexpectedly"
            )
            raise sa.exc.OperationalError(
                "COMMIT", None, reply, connection_invalidated=True
            )

    handler = cards(shop, note_cards, EVERY, cursor=True)
    retry = Retry(max_attempts=2, wait=lambda state: 0.0)
    ended = shop.run(
        handler, times=2, step="15h", schedule=Daily("12:00", tz="UTC"), retry=retry
    )
    assert lost
    assert [one.outcome for one in ended] == outcomes[: len(ended)]
    assert ended[-1].outcome == "succeeded"
    assert shop.carded()[:8] == [*range(1, 9)]
    assert len(shop.carded()) % 8 == 0


def test_a_budget_that_ends_in_a_pause_begins_no_batch(shop: Shop) -> None:
    shop.add(8)
    handler = cards(shop, time_budget="300ms", pause="5s")
    (ended,) = shop.run(handler)
    assert ended.outcome == "succeeded"
    assert shop.carded() == [1, 2, 3, 4]


def test_a_kill_before_the_note_is_deleted_processes_no_row_twice(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that was tried again has committed with the place of the cursor."""
    shop.add(5)
    failing = [2]
    killed = []
    forget = run.Run.forget

    def process(session: orm.Session, proposals: list[Proposal]) -> None:
        if failing and failing[0] in [one.id for one in proposals]:
            if len(proposals) == 1:
                failing.clear()
            raise ValueError("no card yet")
        note_cards(session, proposals)

    def forget_or_die(one: run.Run, key: tuple[object, ...]) -> None:
        if not killed:
            killed.append(key)
            raise KeyboardInterrupt
        forget(one, key)

    monkeypatch.setattr(run.Run, "forget", forget_or_die)
    retry = Retry(max_attempts=2, wait=lambda state: 0.0)
    handler = cards(shop, process, EVERY, cursor=True)
    ended = shop.run(
        handler, times=2, step="15h", schedule=Daily("12:00", tz="UTC"), retry=retry
    )
    assert killed == [(2,)]
    assert ended[-1].outcome == "succeeded"
    assert sorted(shop.carded()) == [1, 2, 3, 4, 5]
    assert aside(shop) == {}


def test_an_awaited_walk_keeps_its_budget_and_takes_refused_rows_again(
    shop: Shop,
) -> None:
    shop.add(8)
    refused = []

    async def execute(ctx: JobContext) -> None:
        engine = create_async_engine(shop.engine.url)

        @sa.event.listens_for(engine.sync_engine, "before_cursor_execute")
        def refuse(connection, cursor, statement, *others) -> None:
            if "FOR UPDATE" in statement and not refused:
                refused.append(statement)
                raise sa.exc.OperationalError(
                    statement, None, psycopg.errors.DeadlockDetected()
                )

        walk = batches(ctx, ELIGIBLE, engine, size=4, time_budget="2s", pause="9s")
        async for batch in walk:
            async with batch as rows:
                ids = [row.id for row in rows]
                change = sa.update(Proposal).where(Proposal.id.in_(ids))
                await batch.connection.execute(change.values(status="done"))
        assert not walk.is_complete
        await engine.dispose()

    (ended,) = shop.run(execute)
    assert (ended.outcome, len(refused)) == ("succeeded", 1), ended
    assert shop.statuses() == {"done": [1, 2, 3, 4], "eligible": [5, 6, 7, 8]}


# -- several walks --------------------------------------------------------------------------------


@pytest.mark.parametrize("cursor", [False, True], ids=["status", "cursor"])
def test_a_second_walk_does_not_go_on_where_a_cursor_has_ended(
    shop: Shop, cursor: bool
) -> None:
    shop.add(5)

    def execute(ctx: JobContext) -> None:
        cards(shop, note_cards, EVERY, cursor=True)(ctx)
        cards(shop, make_cards, ELIGIBLE, cursor=cursor)(ctx)

    (ended,) = shop.run(execute)
    assert "two walks of one handler have the name=''" in (ended.error or "")


def test_a_cursor_goes_on_in_its_own_order_alone(shop: Shop) -> None:
    shop.add(8)

    def execute(ctx: JobContext) -> None:
        order = Proposal.created_at if ctx.attempt == 1 else Proposal.id
        handler = cards(
            shop,
            note_cards,
            EVERY,
            cursor=True,
            order=order,
            max_batches=1,
            resume_after="10m",
        )
        handler(ctx)

    ended = shop.run(execute, times=2, step="15h", schedule=Daily("12:00", tz="UTC"))
    assert ended[0].outcome == "snoozed"
    assert "stands in the order proposals.created_at ASC" in (ended[1].error or "")
    assert len(shop.carded()) == 4


def test_a_task_with_a_cursor_tries_its_own_rows_again_alone(shop: Shop) -> None:
    """Another one of the same name does not find them, and would forget them."""
    shop.add(8)
    bad = [1]

    class Cards(BatchTask):
        name = "cards-of"
        on = shop.sessions
        options: ClassVar = {"cursor": True, "tries": 9, "retry_pause": "0s"}

        def select(self, ctx: TaskContext) -> sa.Select[tuple[Proposal]]:
            return EVERY.where(Proposal.region == ctx.id)

        def process(self, batch: Batch[orm.Session, Proposal]) -> None:
            for one in batch.rows:
                if one.id in bad and batch.rows[1:]:
                    raise ValueError("no card yet")
                if one.id in bad:
                    raise KeyboardInterrupt if aside(shop) else ValueError
            note_cards(batch.session, [*batch.rows])

    registry = JobRegistry(tasks=[Cards])
    with ManualWorker(registry, shop.url, shop.clock, foreign_rows=True) as worker:
        worker.client.schedule(Cards, id="de")
        worker.run_due()
        assert len(aside(shop)) == 1
        worker.client.schedule(Cards, id="at")
        worker.run_due()
        assert len(aside(shop)) == 1


def test_parts_with_a_cursor_have_rows_of_their_own(shop: Shop) -> None:
    class Cards(BatchTask):
        name = "cards-of"
        on = shop.sessions
        select = EVERY
        options: ClassVar = {"cursor": True}

        def process(self, batch: Batch[orm.Session, Proposal]) -> None:
            note_cards(batch.session, [*batch.rows])

    (ended,) = shop.run(lambda ctx: in_parallel(ctx, Cards, 2))
    assert "each task would process all rows" in (ended.error or "")


# -- what the database refuses --------------------------------------------------------------------


def test_rows_that_cannot_be_taken_now_are_taken_after_a_pause(
    shop: Shop,
) -> None:
    """A lock_timeout, for instance, while a cursor waits."""
    shop.add(5)
    waits = []

    @sa.event.listens_for(shop.engine, "begin")
    def hurry(connection: sa.Connection) -> None:
        connection.exec_driver_sql("SET LOCAL lock_timeout = '50ms'")

    @sa.event.listens_for(shop.engine, "handle_error")
    def give_way(context: sa.engine.ExceptionContext) -> None:
        waits.append(str(context.original_exception))
        other.rollback()

    with sa.create_engine(shop.engine.url).connect() as other:
        other.execute(EVERY.where(Proposal.id == 2).with_for_update())
        (ended,) = shop.run(cards(shop, note_cards, EVERY, cursor=True))
    assert ended.outcome == "succeeded", ended
    assert len(waits) == 1
    assert shop.carded() == [1, 2, 3, 4, 5]


def test_the_guard_follows_what_a_session_holds_back(shop: Shop) -> None:
    shop.add(2)
    written = []

    @sa.event.listens_for(shop.engine, "before_cursor_execute")
    def note(connection, cursor, statement, *others) -> None:
        written.append(statement)

    shop.run(cards(shop))
    first = next(place for place, one in enumerate(written) if "INTO cards" in one)
    assert any("scheduled_slots" in one for one in written[first:])


def test_a_walk_without_a_cursor_keeps_the_checkpoint_of_its_handler(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that was saved between two batches."""
    monkeypatch.setattr(run, "SAVE", 0.0)
    shop.add(12)
    found = []

    def execute(ctx: JobContext) -> None:
        for batch in batches(ctx, ELIGIBLE, shop.sessions, size=4):
            with batch as proposals:
                make_cards(batch.session, [*proposals])
            if not found:
                ctx.checkpoint(5)
            found.append(ctx.last_checkpoint)

    shop.run(execute)
    assert found == [5, 5, 5]
