"""The pages about schedules of others: each row of their tables is executed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.markdown import ROOT, name_of

import slotwise
from slotwise import InvalidSchedule, Schedule, parse_schedule
from slotwise.contrib.notations import other_readings

PAGES = sorted((ROOT / "docs" / "from").glob("*.md"))
CONSTRUCTOR = re.compile(r"`((?:Cron|Every|FixedDelay|Once|AnyOf)\([^…`]*\))`")


def rows(page: Path) -> list[list[str]]:
    """The cells of all tables of a page."""
    lines = page.read_text().splitlines()
    split = [
        re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("|")
    ]
    return [[cell.strip().replace("\\|", "|") for cell in cells] for cells in split]


def code(cell: str) -> str:
    """The first code of a cell, without what explains it."""
    return cell.split("`")[1]


PASTED = [
    pytest.param(code(there), here.strip("`"), how, id=f"{page.stem}: {code(there)}")
    for page in PAGES
    for there, here, how in (cells for cells in rows(page) if len(cells) == 3)
    if how in ("the same", "a note", "refused")
]


@pytest.mark.parametrize(("there", "here", "how"), PASTED)
def test_a_pasted_expression(there: str, here: str, how: str) -> None:
    """It is what the page says: the same schedule, one with a note, or refused."""
    if how == "refused":
        with pytest.raises(InvalidSchedule) as refused:
            parse_schedule(there)
        assert here == "–" or str(refused.value).endswith(f"; write {here}")
        return
    found = parse_schedule(there)
    if how == "the same":
        assert str(found) == here
    else:
        notes = other_readings(found)
        assert here in [note.rpartition("write: ")[2] for note in notes]
    assert parse_schedule(here)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_schedules_in_python(page: Path) -> None:
    """What a table has in Python makes a schedule."""
    found = [
        code
        for cells in rows(page)
        for cell in cells
        for code in CONSTRUCTOR.findall(cell)
    ]
    for text in found:
        made = eval(text, vars(slotwise).copy())
        assert isinstance(made, Schedule)


def test_there_are_rows() -> None:
    assert len(PASTED) > 60
