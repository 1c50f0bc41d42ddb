"""Examples in docstrings are run, and what users may import is what the reference documents."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest
from tests.docs.markdown import ROOT

import slotwise

SOURCE = Path(slotwise.__file__).parent


def _modules_with_examples() -> list[str]:
    """Read, not imported: a module that cannot be imported fails its own test, and no other."""
    paths = [
        path
        for path in sorted(SOURCE.rglob("*.py"))
        if re.search(r"^ *>>> ", path.read_text(), re.MULTILINE)
    ]
    return [
        ".".join(["slotwise", *path.relative_to(SOURCE).with_suffix("").parts])
        for path in paths
    ]


@pytest.mark.parametrize("name", _modules_with_examples())
def test_docstring_examples_run(name: str) -> None:
    """An example in a docstring answers as it says."""
    module = importlib.import_module(name.removesuffix(".__init__"))
    late = {word: getattr(module, word) for word in getattr(module, "__all__", ())}
    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS, extraglobs=late)
    assert results.attempted > 0
    assert results.failed == 0


def test_reference_documents_the_front_door() -> None:
    """The reference has an entry for each exported name, and for nothing else at the front
    door.
    """
    text = (
        (ROOT / "docs" / "reference.md")
        .read_text()
        .replace("::: slotwise.jobs.functions.job", "::: slotwise.job")
    )
    entries = re.findall(r"^::: slotwise\.(\w+)$", text, re.MULTILINE)
    names = [
        name for name in entries if not isinstance(getattr(slotwise, name), ModuleType)
    ]
    assert sorted(names) == sorted(slotwise.__all__)


@pytest.mark.parametrize("module", ["inspect", "operations", "spi", "locks"])
def test_reference_documents_the_hall(module: str) -> None:
    """Every name of the other public modules has an entry, and a docstring or a comment."""
    home = importlib.import_module(f"slotwise.{module}")
    entries = re.findall(
        rf"^::: slotwise\.{module}\.(\w+)$",
        (ROOT / "docs" / "reference.md").read_text(),
        re.MULTILINE,
    )
    names = list(getattr(home, "__all__", ()))
    assert sorted(entries) == sorted(names)
    assert [
        name
        for name in names
        if inspect.isroutine(getattr(home, name))
        or inspect.isclass(getattr(home, name))
        if not getattr(home, name).__doc__
    ] == []


def test_exports_say_what_they_are() -> None:
    """Every exported name is there, in order, and has a docstring of its own."""
    assert list(slotwise.__all__) == sorted(slotwise.__all__)
    assert [
        name
        for name in slotwise.__all__
        if not _has_own_docstring(getattr(slotwise, name))
    ] == []


def _has_own_docstring(found: object) -> bool:
    return (
        bool(vars(found).get("__doc__"))
        if isinstance(found, type)
        else bool(found.__doc__)
    )
