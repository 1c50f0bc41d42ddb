"""``slotwise batches``, as people type it."""

from __future__ import annotations

import json
import sys
import types
from typing import ClassVar

import pytest
from tests.contrib.batches.shop import ELIGIBLE, Proposal, Shop, make_cards

from slotwise import DistributedJob, Every, JobContext, JobRegistry
from slotwise.cli.entry import status
from slotwise.contrib.batches import Batch, BatchJob, batches


class Typed:
    """What a command prints, and its exit status."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, line: str) -> tuple[int, str]:
        found = status(["batches", *line.split()])
        out = self.capsys.readouterr()
        return found, out.out + out.err


@pytest.fixture
def typed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Typed:
    monkeypatch.setenv("DATABASE_URL", shop.url)
    return Typed(capsys)


def test_rows_are_listed_retried_and_dropped(shop: Shop, typed: Typed) -> None:
    """The next run takes what was retried, and no run what was dropped."""
    shop.add(6)
    bad = {2, 4, 5}

    def execute(ctx: JobContext) -> None:
        for batch in batches(
            ctx, ELIGIBLE, shop.sessions, size=4, tries=1, retry_pause="0s"
        ):
            with batch as proposals:
                if bad & {one.id for one in proposals}:
                    raise ValueError("no card for \x1b[31m one of these")
                make_cards(batch.session, [*proposals])

    assert typed("list") == (0, "no rows are set aside\n")
    shop.run(execute)
    code, said = typed("")
    assert code == 0
    assert "\x1b" not in said
    assert all(f"cards  {key}  set_aside  1 tries" in said for key in bad), said
    rows = json.loads(typed("list cards --json")[1])
    assert sorted(row["key"] for row in rows) == ["2", "4", "5"]
    assert len(json.loads(typed("list --limit 2 --json")[1])) == 2
    assert typed("list other") == (0, "no rows are set aside\n")

    for word in ("retry", "drop"):
        code, said = typed(f"{word} cards")
        assert (code, "pass --all" in said) == (2, True)
    assert typed("retry cards 99")[0] == 1
    assert "1 row will be tried again" in typed("retry cards 2")[1]
    assert "1 row dropped" in typed("drop cards 4")[1]
    bad.clear()
    shop.run(execute)
    assert shop.statuses() == {"done": [1, 2, 3, 6], "eligible": [4, 5]}
    assert json.loads(typed("retry cards --all --json")[1]) == {
        "name": "cards",
        "rows": 1,
    }
    shop.run(execute)
    assert shop.statuses() == {"done": [1, 2, 3, 5, 6], "eligible": [4]}


def test_a_dry_run_counts_the_rows(
    shop: Shop, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a BatchJob of the application, and changes none."""
    shop.add(7)

    class Cards(BatchJob):
        name = "cards"
        schedule = Every("1h")
        on = shop.sessions
        select = ELIGIBLE.where(Proposal.id > 2)
        options: ClassVar[dict[str, object]] = {"size": 4}

        def process(self, batch: Batch) -> None:
            raise AssertionError

    class Other(DistributedJob):
        name = "other"
        schedule = Every("1h")

        def execute(self, ctx: JobContext) -> None: ...

    application = types.ModuleType("batch_application")
    application.registry = JobRegistry(jobs=[Cards, Other])
    monkeypatch.setitem(sys.modules, "batch_application", application)
    app = "--app batch_application"
    code, said = typed(f"--dry-run cards {app}")
    assert (code, said) == (0, "cards: 5 rows to do\n")
    assert shop.statuses() == {"eligible": [*range(1, 8)]}
    code, said = typed(f"--dry-run other {app}")
    assert code != 0
    assert "neither a BatchJob nor a BatchTask" in said
    code, said = typed(f"--dry-run nothere {app}")
    assert code != 0
    assert "the application has no job or task 'nothere'" in said
