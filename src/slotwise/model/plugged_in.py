"""What lodgers plug in: found by an entry point, and loaded when it is needed.

So is ``importlib.metadata``, which takes as long as all schedules.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from slotwise.errors import ConfigurationError


@cache
def plugged_in(group: str, name: str) -> Any:
    """Return what an entry point names. Raise ConfigurationError if there is none."""
    from importlib.metadata import entry_points

    for entry in entry_points(group=group, name=name):
        return entry.load()
    raise ConfigurationError(
        f"no installed package has the entry point {name!r} of {group}: this installation of "
        "slotwise is incomplete; install it again"
    )


@cache
def all_plugged_in(group: str) -> tuple[Any, ...]:
    """Return what all entry points of a group name."""
    from importlib.metadata import entry_points

    return tuple(entry.load() for entry in entry_points(group=group))
