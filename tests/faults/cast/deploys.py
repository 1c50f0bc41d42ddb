"""The same job twice, or in another deploy: ``rerun@phase=EVERY|2s`` is a job like ``rerun`` with
another schedule.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from slotwise import parse_schedule

_SPELLED = re.compile(r"(?P<name>(?P<kind>[^@=]+)[^=]*)(=(?P<schedule>.*))?")


def edited(known: Mapping[str, type[Any]], spelled: str) -> Any:
    """The job or task of that kind, under that name, with that schedule."""
    match = _SPELLED.fullmatch(spelled)
    assert match is not None, spelled
    made = known[match["kind"]]()
    made.name = match["name"]
    if match["schedule"]:
        made.schedule = parse_schedule(match["schedule"])
    return made
