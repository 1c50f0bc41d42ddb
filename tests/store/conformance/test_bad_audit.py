"""Whatever another program has written to the audit or beside it, reads of jobs go on."""

from __future__ import annotations

import pytest
from tests.store.bench import Bench, at

from slotwise.operations import Operations

BAD = {
    "no document": "x",
    "no object": "[]",
    "a number": "1",
    "deep": "[" * 5_000,
    "a range of numbers": '{"first": 1, "last": 2}',
    "half a range": '{"first": "2026-01-01T12:00:00+00:00"}',
    "without a zone": '{"first": "2026-01-01T12:00:00", "last": "2026-01-01T13:00:00"}',
    "an id that is none": '{"id": {"a": [1]}}',
}


@pytest.mark.parametrize("arguments", BAD.values(), ids=BAD)
def test_one_bad_row_ends_no_listing(bench: Bench, arguments: str) -> None:
    """The audit lists it with what it has, beside the others; explanations leave it out."""
    bench.planned()
    bench.tick(1)
    Operations(lambda: bench.store).pause("plain", note="good")
    controls = bench.tables.controls
    with bench.store.transaction() as connection:
        connection.execute(
            controls.insert().values(
                at=at(1),
                author="x",
                command="skip_next",
                task_name="plain",
                arguments=arguments,
            )
        )
    bad, good = bench.inspect.audit("plain")
    assert (good.operation, good.note) == ("pause", "good")
    assert bad.as_json()["author"] == "x"
    assert bench.inspect.explain("plain", at(1)).sentences
    told = bench.inspect.explain_job("plain")
    assert told is not None
    assert any("good" in sentence for sentence in told.sentences)


@pytest.mark.parametrize("value", ["x", "", "2026-01-01T00:00:00"])
def test_a_bad_mark_of_the_pruner_ends_no_explanation(
    bench: Bench, value: str
) -> None:
    bench.planned()
    bench.tick(1)
    meta = bench.tables.meta
    with bench.store.transaction() as connection:
        connection.execute(meta.insert().values(key="pruned_until", value=value))
    assert bench.inspect.explain("plain", at(-5)).sentences


@pytest.mark.parametrize(
    "value",
    ["x", "[]", "{}", "5", '{"since": 5}', '{"since": "nope"}', '{"author": "x"}'],
)
def test_a_bad_note_of_a_pause_of_all_ends_no_listing(
    bench: Bench, value: str
) -> None:
    """All is paused; by whom is unknown."""
    bench.planned()
    bench.tick(1)
    meta = bench.tables.meta
    with bench.store.transaction() as connection:
        connection.execute(meta.insert().values(key="paused", value=value))
    assert bench.claim("plain") == []
    assert bench.inspect.jobs()
    paused = bench.inspect.health().paused
    assert paused is not None
    assert "cannot be read" in paused
    assert bench.inspect.explain("plain", at(1)).sentences
