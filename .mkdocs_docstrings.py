"""For the reference: sessions in docstrings become blocks of code, and ``#:`` comments the docstrings of attributes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe

_SESSION = re.compile(r"^(?P<indent> *)>>> .*?(?=\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)


class Docstrings(griffe.Extension):
    """Loaded by mkdocstrings, from .mkdocs.yml."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Each object, once it has been read from the source."""
        if obj.docstring is not None:
            obj.docstring.value = _SESSION.sub(_fenced, obj.docstring.value)
        elif obj.is_attribute and (text := _comment_above(obj)):
            obj.docstring = griffe.Docstring(text, lineno=obj.lineno, parent=obj)


def _fenced(session: re.Match[str]) -> str:
    indent = session["indent"]
    return f"{indent}```pycon\n{session[0]}\n{indent}```"


def _comment_above(attribute: griffe.Object) -> str:
    """The lines right above it that begin with ``#:``."""
    path, above = attribute.filepath, []
    lines = attribute.lines_collection[path] if isinstance(path, Path) else []
    number = (attribute.lineno or 1) - 2
    while 0 <= number < len(lines) and (line := lines[number].strip()).startswith("#:"):
        above.append(line.removeprefix("#:").strip())
        number -= 1
    return "\n".join(reversed(above))
