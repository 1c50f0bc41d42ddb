"""The words of rows, ledger and events: members that behave as their texts, and reasons that
features add.
"""

from __future__ import annotations

import ast
import copy
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path

import pytest
from tests.kit.records import LossPolicy, Release, Sentences, vocabulary

import slotwise
from slotwise import ConfigurationError
from slotwise.explain.sentences import how_ended
from slotwise.spi import (
    REASONS,
    Kind,
    ListedState,
    Origin,
    Outcome,
    Reason,
    RowState,
    SlotState,
    WorkerState,
    register_reason,
)

STATES: list[type[StrEnum]] = [RowState, ListedState, SlotState, WorkerState]
ENUMS: list[type[StrEnum]] = [
    *STATES,
    Outcome,
    Release,
    Origin,
    Kind,
    LossPolicy,
    Reason,
]
MEMBERS = [member for enum in ENUMS for member in enum]
SOURCE = Path(slotwise.__file__).parent


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    for reason in ("lock_held", "x"):
        monkeypatch.setitem(vocabulary._sentences, reason, Sentences())
        monkeypatch.delitem(vocabulary._sentences, reason)


@pytest.mark.parametrize("member", MEMBERS, ids=repr)
def test_a_member_is_its_text(member: StrEnum) -> None:
    """In logs, JSON, sets and sorted lists nothing tells a member from what the database
    returns.
    """
    text = member.value
    assert [member, f"{member}", repr(member), f"{member!r:>40}"] == [
        text,
        text,
        repr(text),
        f"{text!r:>40}",
    ]
    assert json.dumps({"word": member}) == json.dumps({"word": text})
    assert {text: 1}[member] == {member: 1}[text] == 1
    assert copy.deepcopy(member) is member


def test_names_follow_the_texts() -> None:
    """A reader finds the member by the text."""
    assert {member.name for member in MEMBERS} == {
        re.sub(r"[ -]", "_", member.value).upper() for member in MEMBERS
    }


@pytest.mark.parametrize("reason", Reason, ids=str)
def test_every_reason_has_a_sentence(reason: Reason) -> None:
    """And no sentence is left over; see ``test_only_members_have_sentences``."""
    found = REASONS[reason]
    assert found.skipped or found.ended or found.waits
    for sentence in filter(None, (found.skipped, found.ended)):
        assert sentence[0].isupper()
        assert sentence.endswith(".")
    assert not (found.waits or "").endswith(".")


@pytest.mark.extended
def test_only_members_have_sentences() -> None:
    """The core registers its own reasons only: in a fresh process, since tests of features
    register theirs.
    """
    code = (
        "import slotwise.registry.registry; from slotwise.model.vocabulary import REASONS, Reason; "
        "print(sorted(set(REASONS) ^ set(Reason)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert run.stdout == "[]\n"


@pytest.mark.usefixtures("registered")
def test_a_feature_adds_a_reason() -> None:
    """With its sentences, and again when it is imported again."""
    for _ in range(2):
        register_reason(
            "lock_held",
            "Another program held its lock.",
            waits="another program holds its lock",
        )
    assert REASONS["lock_held"].skipped == "Another program held its lock."
    assert REASONS["lock_held"].waits == "another program holds its lock"
    assert (
        how_ended("failed", "lock_held", "now")
        == "It ended as failed (lock_held) now."
    )


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("", "It."),
        ("Lock", "It."),
        ("lock-held", "It."),
        ("1st", "It."),
        (" x", "It."),
        ("x\n", "It."),
        ("x" * 41, "It."),
        ("lock_held", None),
        ("late", "It was late."),
        (Reason.RETRY, "It is tried again."),
    ],
)
def test_what_is_no_reason(reason: str, sentence: str | None) -> None:
    """A wrong form, no sentence, or another sentence than the one that is there."""
    before = dict(REASONS)
    with pytest.raises(ConfigurationError, match="reason"):
        register_reason(reason, sentence)
    assert before == REASONS


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    "ended",
    [
        "It ended {foo}.",
        "It ended {}.",
        "It ended {reason}.",
        "It ended {",
        "{ended[x]}",
    ],
)
def test_a_sentence_with_an_unknown_placeholder(ended: str) -> None:
    """It would fail when ``slotwise explain`` prints it."""
    with pytest.raises(ConfigurationError) as refused:
        register_reason("lock_held", ended=ended)
    known = (
        "expected no placeholder but {ended} and {outcome}; write other braces twice"
    )
    assert str(refused.value) == f"reason 'lock_held': ended is {ended!r}; {known}"
    assert "lock_held" not in REASONS


def in_source(search: Callable[[ast.AST], Iterator[str]]) -> list[str]:
    """What the search finds in our modules, and where."""
    found = (
        (path, ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted(SOURCE.rglob("*.py"))
    )
    return [
        f"{path.relative_to(SOURCE)}:{one}"
        for path, tree in found
        for one in search(tree)
    ]


#: Fields that hold a word, and where the word comes from.
FIELDS: dict[str, list[type[StrEnum]]] = {
    "outcome": [Outcome, Release],
    "label": [Outcome, Release],
    "reason": [Reason],
    "stop_reason": [Reason],
    "cancel_reason": [Reason],
    "origin": [Origin],
    "state": STATES,
}


def bare_words(tree: ast.AST) -> Iterator[str]:
    """Texts of members that are compared with such a field, or given to it by name."""
    for node in ast.walk(tree):
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            pairs = [
                (one, other) for one in sides for other in sides if one is not other
            ]
        elif isinstance(node, ast.Call):
            pairs = [
                (ast.Name(word.arg), word.value) for word in node.keywords if word.arg
            ]
        elif isinstance(node, ast.Dict):
            pairs = [
                (ast.Name(key.value), value)
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant) and isinstance(key.value, str)
            ]
        for field, value in pairs:
            words = {
                member.value
                for enum in FIELDS.get(_name(field), ())
                for member in enum
            }
            for text in ast.walk(value):
                if (
                    isinstance(text, ast.Constant)
                    and text.value in words
                    and not _is_within_index(value, text)
                ):
                    yield f"{text.lineno}: {text.value!r}"


def _name(field: ast.expr) -> str:
    match field:
        case (
            ast.Attribute(attr=name)
            | ast.Name(id=name)
            | ast.Subscript(slice=ast.Constant(value=str(name)))
        ):
            return name
    return ""


def _is_within_index(value: ast.expr, text: ast.Constant) -> bool:
    return any(
        isinstance(node, ast.Subscript) and node.slice is text
        for node in ast.walk(value)
    )


def test_bare_words_are_found() -> None:
    """This test's own net has no hole for the usual forms."""
    text = (
        'a.state == "paused"; f(outcome="lost" if x else y); {"reason": "late"}; '
        'r["origin"] in ("trigger", "x")'
    )
    assert len(list(bare_words(ast.parse(text)))) == 4
    assert not list(
        bare_words(ast.parse('f(state=row["dead"], kind="task"); a.label == "other"'))
    )


def test_no_module_spells_a_word_out() -> None:
    """The vocabulary has each word once. Statements in SQL keep their text."""
    assert in_source(bare_words) == []


def typeless_words(tree: ast.AST) -> Iterator[str]:
    """Members where SQLAlchemy takes the type of a parameter from the value: it knows ``str``
    only.
    """
    enums = {enum.__name__ for enum in ENUMS}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func) in (
            "sa.case",
            "sa.literal",
            "sa.func.coalesce",
        ):
            values = [
                value
                for arg in call.args
                for value in (arg.elts[1:] if isinstance(arg, ast.Tuple) else [arg])
            ]
            for value in (*values, *(word.value for word in call.keywords)):
                if (
                    isinstance(value, ast.Attribute)
                    and isinstance(value.value, ast.Name)
                    and value.value.id in enums
                ):
                    yield f"{value.lineno}: {ast.unparse(value)}"


def test_parameters_have_a_type() -> None:
    """Without one PostgreSQL would get an untyped parameter: there ``.value`` is written."""
    assert (
        len(
            list(
                typeless_words(
                    ast.parse(
                        "sa.case((x, RowState.DEAD), else_=Outcome.LOST); sa.literal(Kind.TASK)"
                    )
                )
            )
        )
        == 3
    )
    assert in_source(typeless_words) == []
