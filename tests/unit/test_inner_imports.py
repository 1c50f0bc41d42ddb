"""Tests reach inner modules through ``tests/kit``: a module that moves is named in one place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.docs.markdown import ROOT

#: Inner modules that tests outside of ``tests/kit`` import, and how often. A name that several
#: tests need comes from ``tests/kit``.
MOST_MODULES = 60
MOST_IMPORTS = 150

TESTS = ROOT / "tests"
SOURCE = ROOT / "src"
#: What is published, and what stands around the core.
OUTER = (
    "slotwise.errors",
    "slotwise.inspect",
    "slotwise.operations",
    "slotwise.spi",
    "slotwise.locks",
    "slotwise.testing",
    "slotwise.cli",
    "slotwise.contrib",
    "slotwise.demo",
    "slotwise.embedded",
    "slotwise.simulate",
)


def files() -> Iterator[Path]:
    kit = TESTS / "kit"
    return (path for path in TESTS.rglob("*.py") if kit not in path.parents)


def is_module(name: str) -> bool:
    path = SOURCE / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def imports(path: Path) -> Iterator[str]:
    """Yield the module of each name that a file imports from slotwise."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                yield whole if is_module(whole) else node.module


def inner() -> list[str]:
    """Return the modules of the core that are imported, each as often as it is."""
    found = []
    for path in files():
        for module in imports(path):
            is_outer = any(
                module == one or module.startswith(f"{one}.") for one in OUTER
            )
            if module.startswith("slotwise.") and not is_outer:
                found.append(module)
    return found


def test_tests_reach_the_core_through_the_kit() -> None:
    found = inner()
    assert len(set(found)) <= MOST_MODULES, sorted(set(found))
    assert len(found) <= MOST_IMPORTS
