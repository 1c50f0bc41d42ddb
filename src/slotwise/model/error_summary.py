"""An error's text in one line, for logs and listings."""

from __future__ import annotations

_TRACEBACK = "Traceback (most recent call last):"
#: What an exception group draws in front of its lines.
_DRAWN = " +|"
LIMIT = 500


def error_summary(error: str | None) -> str:
    """Of a traceback the line that names the exception, the last one of a chain; else the first line.

    What a driver adds below (the statement, a link) is left to the whole text. At most 500 characters.
    """
    lines = (error or "").strip().splitlines()
    began = [place for place, line in enumerate(lines) if line == _TRACEBACK]
    if not began and lines and lines[0].lstrip(_DRAWN).endswith(_TRACEBACK):  # of an exception group, itself the first
        lines, began = [line.removeprefix("  | ") for line in lines], [0]
    said = [line for line in lines[began[-1] + 1 if began else 0 :] if line.strip() and not line.startswith("  ")]
    line = (said or lines or [""])[0].strip()
    return line if len(line) <= LIMIT else f"{line[: LIMIT - 1]}…"
