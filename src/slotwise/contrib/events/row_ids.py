"""The id of the row that handles an event: the number of the event, with a word before it, so that
no task of the application has it by chance.
"""

from __future__ import annotations

import re
from typing import Final

import sqlalchemy as sa

_WORD: Final = "event-"
_ID: Final = re.compile(_WORD + "([1-9][0-9]{0,17})")


def row_id(number: int) -> str:
    """Return the id of the rows of an event, of each of its handlers."""
    return f"{_WORD}{number}"


def number_of(id: str) -> int | None:
    """Return the number of the event that a row handles; None for another task's row."""
    found = _ID.fullmatch(id)
    return None if found is None else int(found[1])


def row_id_of(number: sa.ColumnElement[int]) -> sa.ColumnElement[str]:
    """As ``row_id``, of a column."""
    return sa.literal(_WORD, sa.Text) + sa.cast(number, sa.Text)
