"""Lines that set a variable for the lines below them."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

#: A name in quotes, or without a blank; a line that begins otherwise is not an assignment.
_NAME: Final = re.compile(r"""(?:"([^"=]*)"|'([^'=]*)'|([^\s='"][^\s=]*))\s*=\s*""")
#: A value in quotes, with nothing behind it.
_QUOTED: Final = re.compile(r"""(["'])(.*?)\1\s*""")


class Assignment(NamedTuple):
    """``value`` is None where its quotes are not closed, or something stands behind them."""

    name: str
    value: str | None


def read_assignment(line: str) -> Assignment | None:
    """The variable that a line sets; None if it is a line of another kind."""
    match = _NAME.match(line)
    if match is None:
        return None
    name = next(group for group in match.groups() if group is not None)
    value = line[match.end() :]
    if not value.startswith(('"', "'")):
        return Assignment(name, value.rstrip())
    quoted = _QUOTED.fullmatch(value)
    return Assignment(name, quoted[2] if quoted else None)
