"""The hall: every public name with its signature, kept in ``hall.txt`` beside this test, so that a
change is seen; and the signatures that docs/reference.md shows where no site has been built.

To write both anew: SLOTWISE_WRITE_GOLDEN=1 python dev.py test tests/unit/test_hall.py
"""

from __future__ import annotations

import difflib
import enum
import inspect
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from types import ModuleType

from slotwise.client.calls import call

GOLDEN = Path(__file__).with_name("hall.txt")
REFERENCE = Path(__file__).parents[2] / "docs" / "reference.md"
#: An entry of the reference with its options, and the signature below it.
ENTRY = re.compile(
    r"^(?P<entry>::: (?P<path>[\w.]+)\n(?: +.*\n)*)(?:\n```py\n(?:.*\n)*?```\n)?",
    re.MULTILINE,
)
MODULES = (
    "slotwise",
    "slotwise.inspect",
    "slotwise.operations",
    "slotwise.spi",
    "slotwise.locks",
    "slotwise.testing",
)
MOST_NAMES = 250
PUBLIC = {name: getattr(import_module(name), "__all__") for name in MODULES}  # noqa: B009


class _Default:
    """A default as the file shows it: values whose text is the same in every process."""

    def __init__(self, value: object) -> None:
        plain = isinstance(
            value, str | int | float | tuple | timedelta | datetime | None
        )
        self.text = repr(value) if plain else "…"

    def __repr__(self) -> str:
        return self.text


def _signature(subject: Callable[..., object]) -> str:
    """The parameters and the result; annotations without the quotes of some Python versions."""
    try:
        found = inspect.signature(subject)
    except (TypeError, ValueError):
        return "(…)"
    parameters = [
        one
        if one.default is inspect.Parameter.empty
        else one.replace(default=_Default(one.default))
        for one in found.parameters.values()
    ]
    return re.sub("[\"']", "", str(found.replace(parameters=parameters)))


def _lines(name: str, subject: object) -> Iterator[str]:
    if isinstance(subject, enum.EnumMeta):
        yield f"enum {name}"
        yield from (f"    {one.name} = {one.value}" for one in subject)
    elif isinstance(subject, type):
        bases = ", ".join(
            base.__name__ for base in subject.__bases__ if base is not object
        )
        yield f"class {name}{_signature(subject)}{f' of {bases}' if bases else ''}"
        if not issubclass(subject, BaseException):
            yield from _members(subject)
    elif inspect.isroutine(subject):
        yield f"def {name}{_signature(subject)}"
    else:
        yield f"{name}: {type(subject).__name__}"


def _members(owner: type) -> Iterator[str]:
    """Its own public methods and properties, and those of bases that are not published."""
    published = {name for names in PUBLIC.values() for name in names} - {
        owner.__name__
    }
    known: dict[str, object] = {}
    for kind in owner.__mro__:
        if kind.__module__.startswith("slotwise") and kind.__name__ not in published:
            known = {**vars(kind), **known}
    for name, member in sorted(known.items()):
        if name.startswith("_"):
            continue
        if isinstance(member, call):
            member = getattr(owner, name)
        if isinstance(member, classmethod | staticmethod):
            yield f"    {type(member).__name__} {name}{_signature(member.__func__)}"
        elif inspect.isfunction(member):
            kind_of = "async def" if inspect.iscoroutinefunction(member) else "def"
            yield f"    {kind_of} {name}{_signature(member)}"
        elif isinstance(member, property) or hasattr(member, "attrname"):
            yield f"    {name}"


def _text() -> str:
    parts = []
    for module in MODULES:
        parts.append(f"# {module}\n")
        for name in sorted(PUBLIC[module]):
            parts += [
                f"{line}\n"
                for line in _lines(name, getattr(import_module(module), name))
            ]
        parts.append("\n")
    return "".join(parts)


def test_a_change_of_the_hall_is_seen() -> None:
    """Names and signatures are those of the file."""
    text = _text()
    if os.environ.get("SLOTWISE_WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    known = GOLDEN.read_text()
    difference = difflib.unified_diff(
        known.splitlines(), text.splitlines(), GOLDEN.name, "now", lineterm=""
    )
    assert text == known, "\n".join(["meant? see the top of this file", *difference])


def test_the_hall_is_small() -> None:
    """At most 250 names in all, each with one home."""
    names = [name for module in MODULES for name in PUBLIC[module]]
    assert len(names) <= MOST_NAMES
    assert sorted(names) == sorted(set(names))


def test_every_name_is_there_and_listed_once() -> None:
    """``dir`` of a module is what it publishes; nothing that is loaded later is missing."""
    for name in MODULES:
        module = import_module(name)
        assert [one for one in PUBLIC[name] if not hasattr(module, one)] == []
        assert len(PUBLIC[name]) == len(set(PUBLIC[name]))


def _found(path: str) -> object:
    """What a path of the reference leads to: a module, or a name in one."""
    home, _, name = path.rpartition(".")
    with suppress(ModuleNotFoundError):
        return import_module(path)
    return getattr(import_module(home), name)


def _said(subject: object) -> str:
    """The first paragraph of its docstring, as a comment."""
    text = inspect.getdoc(subject) if inspect.isroutine(subject) else subject.__doc__
    first = inspect.cleandoc(text or "").partition("\n\n")[0]
    return "".join(f"# {line}\n" for line in first.splitlines())


def _with_signature(match: re.Match[str]) -> str:
    subject = _found(match["path"])
    if isinstance(subject, ModuleType):
        return match["entry"]
    name = match["path"].rpartition(".")[2]
    lines = "".join(f"{line}\n" for line in _lines(name, subject))
    is_code = isinstance(subject, type) or inspect.isroutine(subject)
    said = _said(subject) if is_code else ""
    return f"{match['entry']}\n```py\n{said}{lines}```\n"


def test_the_reference_has_the_signatures() -> None:
    """Below each entry stand its signature and its first sentences, for who reads a clone."""
    known = REFERENCE.read_text()
    text = ENTRY.sub(_with_signature, known)
    if os.environ.get("SLOTWISE_WRITE_GOLDEN"):
        REFERENCE.write_text(text)
        known = text
    assert text.count("```py\n") > len(PUBLIC["slotwise"])
    difference = difflib.unified_diff(
        known.splitlines(), text.splitlines(), REFERENCE.name, "now", lineterm=""
    )
    assert text == known, "\n".join(["meant? see the top of this file", *difference])
