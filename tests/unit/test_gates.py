"""The list of gates is the only place that asks one."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kit.store import ORDER, Gate, gates

import slotwise

SOURCE = Path(slotwise.__file__).parent
LIST = "store/slots/gates.py"
GATES = {
    name
    for name, kind in vars(gates).items()
    if inspect.isclass(kind) and issubclass(kind, Gate) and kind is not Gate
}


def consultations(text: str) -> Iterator[str]:
    """Where a module uses a gate without the list: by its name, or by a verb of the protocol on
    anything else.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == gates.__name__:
            yield from (
                found.name
                for found in node.names
                if found.name in {*GATES, "Gate", "ORDER"}
            )
        if (
            isinstance(node, ast.Attribute)
            and node.attr in GATES
            and ast.unparse(node.value).endswith("gates")
        ):
            yield node.attr
        is_verb = isinstance(node, ast.Attribute) and node.attr in {
            "admit",
            "give_back",
            "concerns",
        }
        if is_verb and ast.unparse(node.value) != "self._gates":
            yield ast.unparse(node)


def test_every_gate_stands_in_the_list_once() -> None:
    """One that is left out would stop nothing."""
    assert sorted(found.__name__ for found in ORDER) == sorted(GATES), (
        "add it to ORDER in store/slots/gates.py"
    )


def test_the_order_is_documented() -> None:
    """The table at the top names the gates as they are asked."""
    table = [
        line.split("``")[1]
        for line in (gates.__doc__ or "").splitlines()
        if line.startswith("| ``")
    ]
    cure = "add it to ORDER and to the table at the top of store/slots/gates.py, at the same place"
    assert table == [found.__name__ for found in ORDER], cure


def test_no_gate_is_asked_outside_the_list() -> None:
    """Else its place in the order would depend on who asks, and nothing would give back what it
    took.
    """
    files = (
        (file.relative_to(SOURCE).as_posix(), file.read_text())
        for file in SOURCE.rglob("*.py")
    )
    assert {
        file: found
        for file, text in files
        if file != LIST and (found := list(consultations(text)))
    } == {}


@pytest.mark.parametrize(
    "text",
    [
        "from slotwise.store.slots.gates import RecoveryRate",
        "from slotwise.store.slots import gates\ngates.Limits(dialect, {}, settings)",
        "self._recovery.admit([row], now, connection)",
        "limits.give_back(rows, now, connection)",
    ],
)
def test_every_way_to_ask_one_is_found(text: str) -> None:
    """The check is trusted after it has failed."""
    assert list(consultations(text))
