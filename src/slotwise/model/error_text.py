"""Error messages for display: without passwords, and in one line."""

from __future__ import annotations

import re

# Both patterns are linear: their quantifiers are possessive, or cannot meet the same character twice.
_URL = re.compile(r"(?<=[\w+.-])://[^:/?\s]*+:")
_KEYWORD = re.compile(
    r"""((?:passw(?:or)?d|passphrase|pwd)["']?+\s*+[=:]\s*+)(?:'(?:[^'\\]|\\.)*+'?|"[^"]*+"?|(?:\\.|[^\s&\\])++)""",
    re.IGNORECASE | re.DOTALL,
)


def hide_password(text: str) -> str:
    """Replace every password by ``***``: in URLs, libpq strings, query options and reprs. Takes linear time."""
    # Up to the last @: a password may hold @, / and ? itself, and hiding too much is the safe mistake.
    if (url := _URL.search(text)) and (end := text.rfind("@")) >= url.end():
        text = f"{text[: url.end()]}***{text[end:]}"
    return _KEYWORD.sub(r"\1***", text)


_TRACEBACK = "Traceback (most recent call last):"
#: The characters that an exception group draws before its lines.
_DRAWN = " +|"
LIMIT = 500


def error_summary(error: str | None) -> str:
    """Return the line of a traceback that names the exception, the last one of a chain; else the first line.

    Lines that a driver adds below (the statement, a link) are left out. At most 500 characters.
    """
    lines = (error or "").strip().splitlines()
    began = [place for place, line in enumerate(lines) if line == _TRACEBACK]
    if not began and lines and lines[0].lstrip(_DRAWN).endswith(_TRACEBACK):  # of an exception group, itself the first
        lines, began = [line.removeprefix("  | ") for line in lines], [0]
    said = [line for line in lines[began[-1] + 1 if began else 0 :] if line.strip() and not line.startswith("  ")]
    line = (said or lines or [""])[0].strip()
    return line if len(line) <= LIMIT else f"{line[: LIMIT - 1]}…"
