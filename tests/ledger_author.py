"""Listens to every statement that this process sends during a test run: the ledger has one
author.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import sqlalchemy as sa

import slotwise

SOURCE = f"{Path(slotwise.__file__).parent}{os.sep}"
#: What may write slots, gaps and attempts: the ledger's verbs, and the statements of a dialect.
AUTHORS = ("store/slots/ledger.py", "store/dialects/")
#: What statements pass through on their way to the driver.
_ON_THE_WAY = (
    f"{Path(sa.__file__).parent}{os.sep}",
    f"{SOURCE}store{os.sep}connect{os.sep}",
    __file__,
)
_WRITES = re.compile(
    r'\b(INSERT\s+INTO|UPDATE|DELETE\s+FROM)\s+[\w."]*(slots|gaps|attempts)\b',
    re.IGNORECASE,
)


@lru_cache(maxsize=4096)
def writes_ledger(statement: str) -> bool:
    """Whether a part of this statement writes a table of the ledger, whatever its prefix and
    schema.
    """
    return _WRITES.search(statement) is not None


def sender(frame: FrameType | None) -> str | None:
    """Return the file of slotwise that has sent a statement; None if a test or a user's own
    code has.
    """
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_ON_THE_WAY):
            return (
                Path(file[len(SOURCE) :]).as_posix()
                if file.startswith(SOURCE)
                else None
            )
        frame = frame.f_back
    return None


@pytest.fixture(scope="session", autouse=True)
def ledger_has_one_author() -> Iterator[None]:
    """Fail the run if any other file of slotwise has written the ledger; the stack is only looked
    at for such writes.

    Workers in processes of their own, and connections that users have opened with psycopg alone,
    are not heard.
    """
    strangers: dict[str, str] = {}

    def listen(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if writes_ledger(statement):
            file = sender(sys._getframe())
            if file is not None and not file.startswith(AUTHORS):
                strangers.setdefault(
                    file, f"{os.environ.get('PYTEST_CURRENT_TEST')}: {statement}"
                )

    sa.event.listen(sa.Engine, "before_cursor_execute", listen)
    yield
    sa.event.remove(sa.Engine, "before_cursor_execute", listen)
    assert not strangers, (
        f"these files write the ledger beside store/slots/ledger.py and the dialects: {strangers}"
    )
