"""A hot statement over a caller's connection of asyncpg, whose parameters have numbers and types
of the server's choice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_PARAMETER = re.compile(r"%\((\w+)\)s")


def numbered(
    statement: str, parameters: Mapping[str, object]
) -> tuple[str, tuple[object, ...]]:
    """Return the statement with $1, $2 … in place of names, and its values in that order.

    A string is sent as text, and the server casts it: asyncpg would want a list for an array.
    """
    places: dict[str, int] = {}

    def place(match: re.Match[str]) -> str:
        name = match[1]
        number = places.setdefault(name, len(places) + 1)
        return f"${number}::text" if isinstance(parameters[name], str) else f"${number}"

    text = _PARAMETER.sub(place, statement)
    return text, tuple(parameters[name] for name in places)
