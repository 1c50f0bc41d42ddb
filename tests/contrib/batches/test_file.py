"""Batches on SQLite, which locks its file: a batch never waits for its own transaction."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from tests.contrib.batches.shop import ELIGIBLE, Proposal, Shop, make_cards

from slotwise import JobContext
from slotwise.contrib.batches import batches, run


@pytest.mark.parametrize("cursor", [False, True], ids=["status", "cursor"])
def test_each_row_of_a_file_is_processed_once(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, cursor: bool
) -> None:
    monkeypatch.setattr(run, "SAVE", 0.0)
    shop = Shop(sqlite_url)
    shop.add(10)
    select = sa.select(Proposal) if cursor else ELIGIBLE

    def execute(ctx: JobContext) -> None:
        for batch in batches(ctx, select, shop.sessions, size=4, cursor=cursor):
            with batch as proposals:
                make_cards(batch.session, [*proposals])

    (ended,) = shop.run(execute)
    assert ended.outcome == "succeeded", ended
    assert shop.carded() == [*range(1, 11)]
    shop.engine.dispose()
