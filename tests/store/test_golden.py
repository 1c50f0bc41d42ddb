"""The SQL that is sent, kept beside the code: a review reads SQL as SQL, a change of a dialect is
seen in the diff.

To write the files anew: SLOTWISE_WRITE_GOLDEN=1 python -m pytest tests/store/test_golden.py
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest
from tests.store.bench import Bench
from tests.store.statements import VERBS, Stage

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("verb", VERBS)
def test_the_statements_are_those_that_were_reviewed(bench: Bench, verb: str) -> None:
    """Each verb of the store sends what its golden file says, word by word."""
    stage = Stage(bench)
    sent = stage.listen(VERBS[verb](stage))
    file = GOLDEN / bench.database.dialect_name / f"{verb}.sql"
    if os.environ.get("SLOTWISE_WRITE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(sent)
    known = file.read_text() if file.exists() else ""
    difference = difflib.unified_diff(
        known.splitlines(), sent.splitlines(), str(file), "sent now", lineterm=""
    )
    assert sent == known, "\n".join(
        ["reviewed and meant? see the top of this file", *difference]
    )


@pytest.mark.parametrize("dialect", ["postgresql", "sqlite"])
def test_no_file_is_left_behind(dialect: str) -> None:
    """Each file belongs to a verb."""
    assert {file.stem for file in (GOLDEN / dialect).iterdir()} == set(VERBS)


def test_now_is_a_time_that_an_index_can_be_searched_with() -> None:
    """clock_timestamp() is volatile and keeps every index from being used; now() stands still in a
    transaction.
    """
    text = "".join(file.read_text().lower() for file in (GOLDEN / "postgresql").iterdir())
    assert "statement_timestamp()" in text
    assert "clock_timestamp" not in text
    assert "now()" not in text
