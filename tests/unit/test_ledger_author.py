"""One file writes the ledger, and one says what kind a row is: nothing else in the source does."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.ledger_author import AUTHORS, SOURCE, sender, writes_ledger

#: Rooms that no worker needs, and that compare themselves with raw SQL.
BESIDE = ("bench/", "demo/", "testing/")
_TABLE = r"\w*_?(slots|gaps|attempts)\b"
_WRITE = re.compile(
    rf"\b(insert|update|delete)\(\s*([\w.]*\.)?{_TABLE}|\b{_TABLE}\.(insert|update|delete)\("
    rf"|\b(INSERT INTO|UPDATE|DELETE FROM) \{{?{_TABLE}"
)
_KIND = re.compile(
    r"\b(schedule|plan_instance)(\"\])?(\.is_\(None\)|\.is_not\(None\)| IS (NOT "
    r")?NULL)|\bplan_instance is (not )?None"
)


def files_with(pattern: re.Pattern[str]) -> set[str]:
    files = (
        (path.relative_to(SOURCE).as_posix(), path.read_text())
        for path in Path(SOURCE).rglob("*.py")
    )
    return {
        file
        for file, text in files
        if pattern.search(text) and not file.startswith((*AUTHORS, *BESIDE))
    }


def test_one_file_writes_the_ledger() -> None:
    """Beside the dialects; a write that has to be found in two files is one that a law can
    miss.
    """
    assert files_with(_WRITE) == set()


def test_only_the_column_kind_tells_the_kinds_of_rows_apart() -> None:
    """The column ``kind`` does; nothing is deduced from which other columns are empty."""
    assert files_with(_KIND) == set()


@pytest.mark.parametrize(
    "text",
    [
        "slots.update()",
        "tables.gaps.delete().where(",
        "self._slots.insert()",
        "dialect.insert(self.tables.slots)",
        "insert(slots)",
        "update(attempts)",
        "INSERT INTO {slots} AS s",
        "UPDATE scheduled_gaps SET",
    ],
)
def test_every_form_of_a_write_is_found(text: str) -> None:
    """The forms that statements have been written in."""
    assert _WRITE.search(text)


@pytest.mark.parametrize(
    ("statement", "writes"),
    [
        ("UPDATE scheduled_slots SET reason = NULL", True),
        ('insert into "other".my_gaps (task_name) VALUES (1)', True),
        (
            "WITH due AS (UPDATE scheduled_tasks AS t SET picked = true), l AS "
            "(INSERT INTO scheduled_slots AS s",
            True,
        ),
        ("SELECT slot FROM scheduled_slots FOR UPDATE", False),
        (
            "UPDATE scheduled_tasks SET slot = 1 WHERE EXISTS (SELECT FROM scheduled_slots)",
            False,
        ),
    ],
)
def test_the_run_knows_a_write(statement: str, *, writes: bool) -> None:
    """Reading the ledger, and locking it, is free to all."""
    assert writes_ledger(statement) is writes


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (
            ["store/slots/claims.py", "store/connect/commit.py"],
            "store/slots/claims.py",
        ),
        (["store/slots/claims.py", "store/slots/ledger.py"], "store/slots/ledger.py"),
        (["engine/run/threads.py", "/app/handler.py"], None),
    ],
)
def test_the_run_knows_who_sends(files: list[str], found: str | None) -> None:
    """The innermost file that is neither SQLAlchemy nor a connection; a handler's own statement is
    the handler's.
    """
    assert sender(_called_from(files)) == found


def _called_from(files: list[str]) -> FrameType:
    """A frame of the last of these files, which the others have called."""
    calls: list[Any] = [sys._getframe]
    for file in reversed(files):
        scope = {"call": calls[-1]}
        exec(
            compile("def here():\n    return call()", str(Path(SOURCE, file)), "exec"),
            scope,
        )
        calls.append(scope["here"])
    frame: FrameType = calls[-1]()
    return frame
