"""The page for authors of dialects names what each base leaves to them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slotwise.spi import Locking, OneWriter

PAGE = Path(__file__).parents[2] / "docs" / "dialects.md"


@pytest.mark.parametrize(("base", "column"), [(OneWriter, 1), (Locking, 2)])
def test_the_table_names_what_a_base_leaves_open(
    base: type[object], column: int
) -> None:
    left = set()
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[column] == "yes":
            left.update(re.findall(r"`(\w+)\(", cells[0]))
    assert left == getattr(base, "__abstractmethods__")  # noqa: B009
