"""The figures of the source can only fall."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import house

#: A package with a core, a command line that reaches into it, and a plugin that does not.
FILES = {
    "__init__.py": "",
    "errors.py": '"""Docstrings are no code."""\n# nor are comments\nclass Lost(Exception): ...\n',
    "store/__init__.py": "def find(a, b):\n    return [x for x in a if x and b]\n",
    "cli/__init__.py": "from slotwise.store import find\nimport slotwise.errors\nfind(1)._row\n",
    "contrib/__init__.py": "from slotwise.spi import Gate\nclass A:\n    x = Gate()._replace()\n",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    root = tmp_path / "slotwise"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_what_is_counted(package: Path) -> None:
    figures = house.measured(package)
    found = {name: value for name, value in figures.items() if value}
    assert found == {
        "root modules": 2,
        "rooms": 5,
        "arrows": 3,  # from the command line to the store and to errors; from contrib
        "names that lodgers take from inside the core": 2,
        "pairs of a lodger and an inner module": 2,
        "reaches of lodgers into private names": 1,
        "tokens of the core": 27,
        "tokens per line of code, whole": 6.8,
        "tokens of a function of the store, 90th of a hundred": 20,
        "longest file": 3,
    }


def test_branches_are_counted(package: Path) -> None:
    """A loop, a comprehension, each further operand of `and` and `or`."""
    (function,) = house.House(package).functions
    assert (function.place, function.branches) == ("store/__init__.py:1 find", 2)


def test_a_figure_may_fall_and_not_rise() -> None:
    """One that is better than its goal may move up to it."""
    limits = house.allowed({"arrows": 127, "rooms": 20})
    assert limits["arrows"] == 127
    assert limits["rooms"] == 26


def test_what_fell_is_written(tmp_path: Path) -> None:
    figures = dict.fromkeys(house.FIGURES, 5.0) | {"arrows": 130.0}
    committed = {"arrows": 127.0, "rooms": 9.0}
    path = tmp_path / "house.txt"
    path.write_text(house.written(figures, committed))
    assert house.reached(path) == {**figures, "arrows": 127.0}


def test_a_merge_keeps_the_lower_figure(tmp_path: Path) -> None:
    """Two branches lowered the same figure: --write goes on from their conflict."""
    path = tmp_path / "house.txt"
    path.write_text("<<<<<<< here\narrows: 9\n=======\narrows: 8\n>>>>>>> there\n")
    assert house.reached(path) == {"arrows": 8.0}
