"""For the site: its version and repository, from pyproject.toml; in the reference, docstrings with sessions.

Sessions in docstrings become blocks of code, and ``#:`` comments the docstrings of attributes.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.pages import Page

_CELL, _CODE = (
    re.compile(r"<td.*?</td>", re.DOTALL),
    re.compile(r"<code>([^<]*)</code>"),
)
#: The signature below an entry of the reference, for who reads the page as it is.
_SIGNATURE = re.compile(r"^```py\n.*?^```\n", re.DOTALL | re.MULTILINE)
_SESSION = re.compile(
    r"^(?P<indent> *)>>> .*?(?=\n\s*\n|\Z)", re.DOTALL | re.MULTILINE
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Called by mkdocs: each page names the version at its top and bottom, and links to the repository.

    The link is no ``repo_url``: for that, Material's script would fetch figures from the host of the repository.
    """
    project = tomllib.loads(Path(__file__).with_name("pyproject.toml").read_text())[
        "project"
    ]
    config.copyright = f"slotwise {project['version']} · {config.copyright}"
    config.site_name = f"{config.site_name} {project['version']}"
    link = {
        "icon": "fontawesome/brands/git-alt",
        "link": project["urls"]["Repository"],
        "name": "Source",
    }
    config.extra["social"] = [link]
    return config


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Called by mkdocs: the site has the signatures from the source, not also those of the page's text."""
    is_reference = page.file.src_uri == "reference.md"
    return _SIGNATURE.sub("", markdown) if is_reference else markdown


def on_page_content(html: str, **_: Any) -> str:
    """Called by mkdocs: code in a table's cell breaks between its words, and not at the hyphens of an option."""
    return _CELL.sub(lambda cell: _CODE.sub(_whole_words, cell[0]), html)


def _whole_words(code: re.Match[str]) -> str:
    return f"<code>{' '.join(f'<span>{word}</span>' if '-' in word else word for word in code[1].split(' '))}</code>"


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
    while 0 <= number < len(lines) and (line := lines[number].strip()).startswith(
        "#:"
    ):
        above.append(line.removeprefix("#:").strip())
        number -= 1
    return "\n".join(reversed(above))
