"""A NUL, which PostgreSQL keeps in no text, costs neither an outcome nor a traceback."""

from __future__ import annotations

from typing import Any

import pytest
from tests.store.bench import Bench

from slotwise import Cancel, ConfigurationError, Fail, UnknownTask, task
from slotwise.spi import Database
from slotwise.testing import ManualWorker


@pytest.mark.parametrize(
    ("raised", "outcome", "kept"),
    [
        (Cancel("a\x00b"), "cancelled", ("a\\x00b", None)),
        (Fail("a\x00b"), "failed", (None, "a\\x00b")),
        (Cancel("a\ud800" + 40_000 * "x"), "cancelled", None),
        (Cancel(5), "cancelled", ("5", None)),  # type: ignore[arg-type]
    ],
    ids=["cancel", "fail", "half a letter, and long", "no text"],
)
def test_what_a_handler_says(
    database: Database, raised: Exception, outcome: str, kept: Any
) -> None:
    """Is kept with such letters escaped."""

    def handler(ctx: Any) -> None:
        raise raised

    with ManualWorker(
        [task(name="t", record="all", retry=None)(handler)], database
    ) as worker:
        worker.client.schedule("t", id="1")
        assert [ended.outcome for ended in worker.run_due()] == [
            "dead" if outcome == "failed" else outcome
        ]
        line = worker.client.get("t", "1")
        (end, *_) = worker.client.history("t", "1")
        assert (end.outcome, line is None) == (outcome, outcome == "cancelled")
        if kept is not None:
            assert (end.reason, end.error) == kept


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        (
            lambda bench: bench.client.operations.pause("plain", note="a\x00b"),
            "note='a\\x00b': it contains a NUL",
        ),
        (
            lambda bench: bench.client.operations.by("a\x00b").pause("plain"),
            "author='a\\x00b': it contains a NUL",
        ),
        (
            lambda bench: bench.client.operations.pause("plain", note=5),
            "note=5: expected a string; write note='5'",
        ),
        (
            lambda bench: bench.client.operations.by(5).pause("plain"),
            "author=5: expected a string; write author='5'",
        ),
        (
            lambda bench: bench.client.operations.pause("plain", note="x" * 1_000_000),
            "note has 1,000,000 characters, at mo",
        ),
        (lambda bench: bench.client.operations.pause("pla\x00in"), ""),
    ],
    ids=["note", "author", "number", "author's number", "long", "name"],
)
def test_what_is_said_of_an_operation(
    bench: Bench, operation: Any, words: str
) -> None:
    """Is refused in one line, and the operation is not carried out."""
    with pytest.raises((ConfigurationError, UnknownTask)) as refused:
        operation(bench)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert list(bench.inspect.audit()) == []


def test_the_nearest_job_is_named(bench: Bench) -> None:
    """Of an operation for one that nobody knows."""
    with pytest.raises(
        UnknownTask,
        match="no job 'plian' in this database; did you mean 'plain'\\? Otherwise start",
    ):
        bench.client.operations.pause("plian")
