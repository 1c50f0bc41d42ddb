"""The code and the tables of a Markdown page, with the lines where they stand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]

#: The first line of a block that is shown and not run; it says why, for readers and for the test
#: that counts them.
FRAGMENT = "# fragment: "

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w-]*)[^\n`]*\n(?P<code>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block: its language, its text without the fence's indentation, and the number of
    its first line.
    """

    page: Path
    language: str
    code: str
    line: int

    @property
    def is_fragment(self) -> bool:
        return self.code.startswith(FRAGMENT)

    @property
    def padded(self) -> str:
        """The code on the lines where the page has it, so that a traceback points there."""
        return "\n" * (self.line - 1) + self.code


def blocks(page: Path, *languages: str) -> list[Block]:
    """The page's fenced blocks in these languages, in order."""
    text = page.read_text()
    return [
        Block(
            page=page,
            language=match["language"],
            code=re.sub(rf"^{match['indent']}", "", match["code"], flags=re.MULTILINE),
            line=text.count("\n", 0, match.start()) + 2,
        )
        for match in _FENCE.finditer(text)
        if match["language"] in languages
    ]


def table(page: Path, heading: str) -> Iterator[list[str]]:
    """The cells of each row, head left out, of the first table under the heading; back-quotes and
    emphasis dropped.
    """
    _, found, rest = page.read_text().partition(f"\n{heading}\n")
    assert found, f"{page.name} has no line {heading!r}"
    lines = rest.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            return
        yield [
            cell.strip().replace("`", "")
            for cell in re.split(r"(?<!\\)\|", line)[1:-1]
        ]


def name_of(page: Path) -> str:
    """The page as it is called in test ids and messages."""
    return str(page.relative_to(ROOT))
