"""The picture of the rooms is the import contract, and the walks pass through functions that
exist.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict

import pytest
from tests.docs.markdown import ROOT, blocks

PAGE = ROOT / "docs" / "internals.md"
SOURCE = ROOT / "src" / "slotwise"
STEP = re.compile(r"^\d+\. `([\w/]+\.py)` `([\w.]+)`:", re.MULTILINE)


def _contracts(kind: str) -> list[dict[str, list[str]]]:
    """The import contracts of this type."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    return [one for one in tools["importlinter"]["contracts"] if one["type"] == kind]


def _contract() -> dict[str, list[str]]:
    """The layers of each container, from top to bottom."""
    return {one["containers"][0]: one["layers"] for one in _contracts("layers")}


def _picture() -> dict[str, list[str]]:
    """The boxes of the first block of text: the title of each, and its lines."""
    titles: dict[int, str] = {}
    boxes: dict[str, list[str]] = defaultdict(list)
    for line in blocks(PAGE, "text")[0].code.splitlines():
        titles |= {
            found.start(): found[1] for found in re.finditer(r"┌─([\w.]+)─+┐", line)
        }
        for found in re.finditer(r"│ (\S[^│]*?) +│", line):
            boxes[titles[found.start()]].append(found[1])
    return dict(boxes)


def test_picture_is_the_import_contract() -> None:
    """Each room stands on the floor that the import contract gives it."""
    assert _picture() == _contract()


def test_lodgers_import_no_room_of_the_core() -> None:
    """Their contract names each room below the hall; embedded is a tool of both."""
    contract, dashboard, alarms = _contracts("forbidden")
    assert dashboard["source_modules"] == ["slotwise.contrib.dashboard"]
    assert alarms["source_modules"] == ["slotwise.contrib.alarms"]
    layers = _contract()["slotwise"]
    below = layers[layers.index("inspect | operations | spi") + 1 :]
    rooms = {name for layer in below for name in layer.split(" | ")} - {"embedded"}
    assert set(contract["forbidden_modules"]) == {f"slotwise.{name}" for name in rooms}


def _walks() -> list[tuple[str, list[tuple[str, str]]]]:
    """The title of each walk, and its steps."""
    section = PAGE.read_text().partition("\n## Five walks\n")[2].partition("\n## ")[0]
    titled = re.split(r"^### (.+)$", section, flags=re.MULTILINE)[1:]
    return [
        (title, STEP.findall(text))
        for title, text in zip(titled[::2], titled[1::2], strict=True)
    ]


def test_there_are_five_walks() -> None:
    """Each has steps, and every numbered line of it is one."""
    section = PAGE.read_text().partition("\n## Five walks\n")[2].partition("\n## ")[0]
    assert len(_walks()) == 5
    assert sum(len(steps) for _, steps in _walks()) == len(
        re.findall(r"^\d+\. ", section, re.MULTILINE)
    )


@pytest.mark.parametrize(
    ("title", "steps"), _walks(), ids=[title for title, _ in _walks()]
)
def test_walks_pass_through_functions_that_exist(
    title: str, steps: list[tuple[str, str]]
) -> None:
    """Each step names a function, or a method of a class, that is defined in the module beside
    it.
    """
    missing = [f"{path} {name}" for path, name in steps if not _defines(path, name)]
    assert missing == [], f"correct the walk {title!r}"


def _defines(path: str, name: str) -> bool:
    body = (
        ast.parse((SOURCE / path).read_text()).body if (SOURCE / path).exists() else []
    )
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    for part in name.split("."):
        found = next(
            (node for node in body if isinstance(node, kinds) and node.name == part),
            None,
        )
        if found is None:
            return False
        body = found.body
    return True
