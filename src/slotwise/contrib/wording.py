"""Numbers in sentences for people."""

from __future__ import annotations


def counted(count: int, noun: str, one: str = "", many: str = "") -> str:
    """Return a number with its noun and, if given, the verb: "1 slot runs", "2,000 slots run"."""
    words = (noun, one) if count == 1 else (f"{noun}s", many)
    return " ".join(filter(None, (f"{count:,}", *words)))
