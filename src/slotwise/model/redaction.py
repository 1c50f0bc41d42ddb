"""What must never be printed: the password inside a connection string or a driver's message."""

from __future__ import annotations

import re

# Greedy up to the last @: a password may hold @, / and ? itself, and hiding too much is the safe mistake.
_IN_URL = re.compile(r"(\b[\w+.-]+://[^:/?\s]*:).*(?=@)", re.DOTALL)
_AS_KEYWORD = re.compile(
    r"""(password["']?\s*[=:]\s*)(?:'(?:[^'\\]|\\.)*(?:'|\Z)|"[^"]*(?:"|\Z)|(?:\\.|[^\s&\\])+)""",
    re.IGNORECASE | re.DOTALL,
)


def hide_password(text: str) -> str:
    """The text with every password replaced by ``***``: in URLs, libpq strings, query options and reprs."""
    return _AS_KEYWORD.sub(r"\1***", _IN_URL.sub(r"\1***", text))
