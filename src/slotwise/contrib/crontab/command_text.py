"""The percent signs of a command: the first ends it, what follows is its input, more of them are newlines."""

from __future__ import annotations

import re
from typing import Final

#: A backslash takes the next character along: what follows it is not the first percent sign.
_PIECE: Final = re.compile(r"\\.?|%|[^\\%]+", re.DOTALL)
_PERCENT: Final = re.compile(r"\\?%")


def split_input(text: str) -> tuple[str, str | None]:
    """The command, and what stands on its standard input (None where there is no percent sign); as cron's C does it."""
    command = ""
    for piece in _PIECE.finditer(text):
        if piece[0] == "%":
            return command, _input(text[piece.end() :])
        command += "%" if piece[0] == r"\%" else piece[0]
    return command, None


def _input(text: str) -> str:
    given = _PERCENT.sub(lambda found: "%" if found[0] == r"\%" else "\n", text)
    return given if not given or given.endswith("\n") else given + "\n"
