"""Pages and public docstrings avoid phrases that readers stumble over. Extend the list when one
stumbles again.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.markdown import PAGES, ROOT, name_of

#: A phrase to avoid, and what to write instead.
AVOID = {
    r"\b(?:how manieth|for any values|dear to make)\b": "an ordinal; any value; expensive",
    r"\b(?:nobody|somebody|whoever|whomever|(?<!by )whom)\b": "name the subject: no worker, an operator, the caller",
    r"(?:^|[.;:] )Who (?:has|may|is|wants|finds|gets|comes)\b(?![^.?]*\?)": "name the subject: a worker that has …",
    r"\b(?:is|are|was|were) told\b(?! to\b)": "receives, is notified, is logged",
    r"\btexts\b": "strings",
    r"\btake another\b": "choose another",
    r"\brows of others\b": "rows of other tasks, of other workers",
    r"\bshort batch\b": "a partial batch",
    r"\b(?:lets?|letting) (?:\w+ )?go\b": "release",
    r"\b(?:minds|minding)\b": "checks, waits for",
    r"\btak(?:es?|ing) in\b": "accept, collect",
    r"\bknows? of\b": "knows, registers",
    r"\b(?:says?|said) so\b": "log, report",
    r"\bstands? (?:there|beside|between|in the)\b": "is",
    r"\b(?:go|goes|went) on\b": "continue",
    r"\bburnt\b": "counted",
    r"\band (?:its|their) kin\b": "name the things",
    r"\bbec(?:ome|omes|ame) of\b": "happens to",
    r"\b(?:call|calls|called|calling) off\b": "cancel",
    r"\b(?:put|puts|putting) off\b": "defer",
    r"\bset(?:s|ting)? aside\b": "quarantine, postpone",
    r"\bas ever\b": "as usual",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\ball the same\b": "nevertheless",
    r"\bthat is (?-i:none)\b": "say what is invalid",
    r"\bone another'?s word\b|\bpeer's word\b|\bwithout a word\b": "notification",
    r"\b(?:be driven|drive) (?:it )?again\b": "retry",
    r"\bits own words\b": "its own terms",
    r"\bhands? (?:it )?to whatever\b": "pass to",
}
PATTERNS = [
    (re.compile(phrase, re.IGNORECASE | re.MULTILINE), better)
    for phrase, better in AVOID.items()
]


def prose(text: str) -> str:
    """A page or a docstring without code: fences, sessions, spans and the targets of links."""
    text = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^ *(?:>>>|\.\.\.) .*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"(``?)(?!`).+?\1", "x", text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return re.sub(r"(?<=\S)\n(?=[ \t]*[\w(\[*\"'])", " ", text)


def stumbles(text: str) -> list[str]:
    """The phrases to avoid in a text, each with its surroundings and what to write instead."""
    found = (
        (match, better)
        for pattern, better in PATTERNS
        for match in pattern.finditer(text)
    )
    return [f"…{_around(text, match)}…: write {better!r}" for match, better in found]


def _around(text: str, match: re.Match[str]) -> str:
    return " ".join(text[max(match.start() - 40, 0) : match.end() + 40].split())


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_avoid_phrases(page: Path) -> None:
    """A page has none of the phrases."""
    assert stumbles(prose(page.read_text())) == []


def public_names() -> list[str]:
    """The names that the reference documents."""
    return re.findall(
        r"^::: ([\w.]+)$", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE
    )


def docstrings(name: str) -> Iterator[str]:
    """The docstring of a public name, and those of its public methods."""
    found = _resolve(name)
    yield inspect.getdoc(found) or ""
    if isinstance(found, type):
        for attribute in dir(found):
            if not attribute.startswith("_"):
                yield inspect.getdoc(inspect.getattr_static(found, attribute)) or ""


def _resolve(name: str) -> object:
    path, _, attribute = name.rpartition(".")
    return (
        getattr(_resolve(path), attribute)
        if path and not _is_module(name)
        else importlib.import_module(name)
    )


def _is_module(name: str) -> bool:
    source = ROOT / "src" / Path(*name.split("."))
    return source.is_dir() or source.with_suffix(".py").exists()


@pytest.mark.parametrize("name", public_names())
def test_public_docstrings_avoid_phrases(name: str) -> None:
    """A public docstring has none of the phrases."""
    assert [one for text in docstrings(name) for one in stumbles(prose(text))] == []


@pytest.mark.parametrize(
    "phrase",
    [
        "Nobody knows of it.",
        "Who has no room waits.",
        "The caller\nis told.",
        "the keys are texts",
    ],
)
def test_phrases_are_found(phrase: str) -> None:
    """Also across the end of a line."""
    assert stumbles(prose(phrase))


@pytest.mark.parametrize(
    "phrase",
    ["The worker is told to stop.", "`nobody` may log in.", "Who has paused it?"],
)
def test_other_phrases_are_not(phrase: str) -> None:
    """Good English, code and questions pass."""
    assert stumbles(prose(phrase)) == []
