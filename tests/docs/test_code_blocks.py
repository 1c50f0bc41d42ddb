"""The documentation's code runs; what is only shown says so in its first line, and is counted
here.
"""

from __future__ import annotations

import ast
import doctest
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.docs.markdown import FRAGMENT, PAGES, ROOT, blocks, name_of

from slotwise import JobRegistry
from slotwise.spi import Settled
from slotwise.testing import ManualWorker

#: How many blocks of each page are shown and not run. Whoever adds one says why, in its first
#: line.
FRAGMENTS: dict[str, int] = {
    "docs/dashboard.md": 1,
    "docs/django.md": 8,
    "docs/lock-providers.md": 1,
    "docs/quickstart.md": 2,
    "docs/sessions.md": 1,
    "docs/testing.md": 1,
}

RUNNING = [
    page
    for page in PAGES
    if any(not block.is_fragment for block in blocks(page, "python"))
]
TALKING = [page for page in PAGES if blocks(page, "pycon")]


@pytest.mark.parametrize("page", RUNNING, ids=name_of)
def test_python_blocks_run(
    page: Path, pg_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Python blocks of a page run one after another, as its reader would type them, on a
    database with tables.
    """
    monkeypatch.setenv("DATABASE_URL", pg_url)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    with ExitStack() as left_open:
        run_blocks(page, names, left_open)


def test_guarded_jobs_do_what_they_say(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs of the page on guarantees leave one row for each slot, and the slot says that it
    succeeded.
    """
    monkeypatch.setenv("DATABASE_URL", pg_url)
    names: dict[str, Any] = {"__name__": "page"}
    with ExitStack() as left_open:
        run_blocks(ROOT / "docs" / "guarantees.md", names, left_open)
        with names["engine"].begin() as connection:
            for name in ("closed_days", "open_days"):
                connection.execute(
                    sa.text(f"CREATE TABLE {name} (day date PRIMARY KEY)")
                )
        with ManualWorker([names["CloseDay"], names["OpenDay"]], pg_url) as worker:
            for _ in range(2):
                worker.tick("1d")
                ended = [
                    event for event in worker.run_due() if isinstance(event, Settled)
                ]
                assert [event.outcome for event in ended] == ["succeeded"] * 2
        with names["engine"].connect() as connection:
            for name in ("closed_days", "open_days"):
                assert connection.scalar(sa.text(f"SELECT count(*) FROM {name}")) == 2


def run_blocks(page: Path, names: dict[str, Any], left_open: ExitStack) -> None:
    """All blocks of a page that are meant to be run, in order."""
    for block in blocks(page, "python"):
        # The SDK of Sentry stays active in its process: tests/contrib/test_sentry.py runs its
        # blocks.
        if not block.is_fragment and "sentry_sdk" not in block.code:
            exec(compile(block.padded, page, "exec", dont_inherit=True), names)
            close_later(names, left_open)


def close_later(names: dict[str, Any], stack: ExitStack) -> None:
    """What a reader's process leaves to its end: the pools of engines and registries."""
    for value in names.values():
        if isinstance(value, sa.Engine):
            stack.callback(value.dispose)
        if isinstance(value, JobRegistry):
            stack.callback(value.database.close)


@pytest.mark.parametrize("page", TALKING, ids=name_of)
def test_sessions_answer_as_shown(page: Path) -> None:
    """What a page shows as an interactive session is what Python answers."""
    parser = doctest.DocTestParser()
    names: dict[str, object] = {}
    for block in blocks(page, "pycon"):
        session = parser.get_doctest(
            block.code, names, name_of(page), str(page), block.line - 1
        )
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        told: list[str] = []
        runner.run(session, out=told.append, clear_globs=False)
        names = session.globs
        assert not runner.failures, "".join(told)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_fragments_are_counted(page: Path) -> None:
    """A block that is not run says why, is Python all the same, and nobody adds one unnoticed."""
    fragments = [block for block in blocks(page, "python") if block.is_fragment]
    for block in fragments:
        assert len(block.code.partition("\n")[0]) > len(FRAGMENT), (
            "a fragment says why it is one"
        )
        ast.parse(block.code)
    assert len(fragments) == FRAGMENTS.get(name_of(page), 0)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_names_its_language(page: Path) -> None:
    """A fence without a language would hide code from the tests above."""
    assert [block.line for block in blocks(page, "")] == []
