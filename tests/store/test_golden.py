"""The SQL that is sent, kept beside the code: a review reads SQL as SQL, a change of a dialect is
seen in the diff.

Each statement is one file; ``golden/DIALECT/verbs.txt`` has the statements of each verb. To write
them anew: SLOTWISE_WRITE_GOLDEN=1 python3 dev.py test tests/store/test_golden.py -n 0
"""

from __future__ import annotations

import difflib
import os

import pytest
from tests.store.bench import Bench
from tests.store.golden_statements import GOLDEN, GoldenStatements
from tests.store.statements import VERBS, Stage


@pytest.mark.parametrize("verb", VERBS)
def test_the_statements_are_those_that_were_reviewed(bench: Bench, verb: str) -> None:
    """Each verb of the store sends the statements that its list names, word by word."""
    stage = Stage(bench)
    sent = [f"{statement};\n" for statement in stage.listen(VERBS[verb](stage))]
    golden = GoldenStatements(bench.database.dialect_name)
    if os.environ.get("SLOTWISE_WRITE_GOLDEN"):
        golden.write(verb, sent)
    known = golden.sent_by(verb)
    difference = difflib.unified_diff(
        "\n".join(known).splitlines(),
        "\n".join(sent).splitlines(),
        f"golden: {verb}",
        "sent now",
        lineterm="",
    )
    assert sent == known, "\n".join(
        ["reviewed and meant? see the top of this file", *difference]
    )


@pytest.mark.parametrize("dialect", ["postgresql", "sqlite"])
def test_every_statement_is_sent_by_a_verb(dialect: str) -> None:
    """No file is left behind, and no statement has two files."""
    golden = GoldenStatements(dialect)
    if os.environ.get("SLOTWISE_WRITE_GOLDEN"):
        golden.remove_unused()
        golden = GoldenStatements(dialect)
    listed = {name for names in golden.verbs.values() for name in names}
    assert set(golden.verbs) == set(VERBS)
    assert set(golden.texts) == listed
    assert len(set(golden.texts.values())) == len(golden.texts)


def test_now_is_a_time_that_an_index_can_be_searched_with() -> None:
    """clock_timestamp() is volatile and keeps every index from being used; now() stands still in a
    transaction.
    """
    files = (GOLDEN / "postgresql").glob("*.sql")
    text = "".join(file.read_text().lower() for file in files)
    assert "statement_timestamp()" in text
    assert "clock_timestamp" not in text
    assert "now()" not in text
