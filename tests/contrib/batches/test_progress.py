"""How far a walk is: in what inspect lists, in the listing, and in the explanation of its slot."""

from __future__ import annotations

import json

import pytest
import sqlalchemy as sa
from tests.contrib.batches.shop import ELIGIBLE, START, Proposal, Shop, make_cards

from slotwise import JobContext
from slotwise.cli.entry import status
from slotwise.contrib.batches import batches, run
from slotwise.inspect import SlotInfo

EVERY = sa.select(Proposal)


@pytest.mark.parametrize("total", [None, True, 12])
@pytest.mark.parametrize("cursor", [False, True], ids=["status", "cursor"])
def test_a_running_slot_says_how_far_it_is(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, cursor: bool, total: int | bool | None
) -> None:
    """And how much is left only where the total is given. Success ends it."""
    monkeypatch.setattr(run, "SAVE", 0.0)
    shop.add(12)
    seen: list[SlotInfo] = []
    select = EVERY if cursor else ELIGIBLE

    def execute(ctx: JobContext) -> None:
        found = batches(ctx, select, shop.sessions, size=4, cursor=cursor, total=total)
        for batch in found:
            seen.extend(ctx.client.inspect.pending("cards")[-1:])
            with batch as proposals:
                make_cards(batch.session, [*proposals])

    with shop.worker(execute) as worker:
        worker.tick("1h")
        worker.run_due()
        (after,) = [
            one for one in worker.client.inspect.slots("cards") if one.last is None
        ]
    assert [one.done for one in seen] == [None, 4, 8]
    all_of_them = None if total is None else 12
    assert [one.total for one in seen[1:]] == [all_of_them] * 2
    assert all(one.rate and one.rate > 0 for one in seen[1:])
    words = seen[-1].progress or ""
    assert words.startswith("8 done, " if total is None else "8 of 12 done, ")
    assert (" left" in words) is (total is not None)
    assert (after.outcome, after.progress) == ("succeeded", None)


def test_people_read_it_while_the_slot_runs(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``slots``, ``slots show``, and ``explain``."""
    monkeypatch.setenv("DATABASE_URL", shop.url)
    monkeypatch.setattr(run, "SAVE", 0.0)
    shop.add(8)
    said: dict[str, str] = {}
    slot = f"{START.replace(hour=1):%Y-%m-%dT%H:%MZ}"
    lines = ["slots cards", f"slots show cards {slot}", f"explain cards {slot}"]

    def execute(ctx: JobContext) -> None:
        for batch in batches(ctx, ELIGIBLE, shop.sessions, size=4, total=True):
            with batch as proposals:
                make_cards(batch.session, [*proposals])
            if not said:
                for line in [*lines, "slots cards --json"]:
                    assert status(line.split()) == 0, capsys.readouterr()
                    said[line] = " ".join(capsys.readouterr().out.split())

    shop.run(execute)
    for line in lines:
        assert "4 of 8 done" in said[line], said
    (listed,) = [one for one in json.loads(said["slots cards --json"]) if one["done"]]
    assert (listed["done"], listed["total"]) == (4, 8)


def test_what_a_handler_saves_itself_is_shown_too(shop: Shop) -> None:
    """By whole numbers; other checkpoints show nothing."""
    seen: list[str | None] = []

    def execute(ctx: JobContext) -> None:
        for value in ({"done": 3, "total": 9}, {"done": "3"}, [1], {"total": 9}):
            ctx.checkpoint(value)
            seen.append(ctx.client.inspect.pending("cards")[-1].progress)

    shop.run(execute)
    assert seen == ["3 of 9 done", None, None, None]


@pytest.mark.parametrize("cursor", [False, True], ids=["status", "cursor"])
def test_a_later_attempt_counts_no_row_twice(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, cursor: bool
) -> None:
    """The total stays the same when a run goes on where another one has ended."""
    monkeypatch.setattr(run, "SAVE", 0.0)
    shop.add(12)
    seen: list[str | None] = []
    select = EVERY if cursor else ELIGIBLE

    def execute(ctx: JobContext) -> None:
        found = batches(
            ctx,
            select,
            shop.sessions,
            size=4,
            cursor=cursor,
            total=True,
            max_batches=1,
            resume_after="1m",
        )
        for batch in found:
            with batch as proposals:
                make_cards(batch.session, [*proposals])
            seen.append(ctx.client.inspect.pending("cards")[-1].progress)

    shop.run(execute, times=5, step="20m")
    assert [str(one).partition(" done")[0] for one in seen] == [
        "4 of 12",
        "8 of 12",
        "12 of 12",
    ]
