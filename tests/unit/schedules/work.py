"""What a call costs, counted: lines of Python that ran and functions of C that were called, alike
on every machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def within(steps: int, call: Callable[[], T]) -> T:
    """What the call returns, if it takes so many steps at the most; stopped at the first beyond
    them.

    Bounds lie some times above what was counted, so that only a change of kind breaks them.
    """
    left = steps

    def spend() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise AssertionError(f"more than {steps:,} steps")

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            spend()
        return trace

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            spend()

    before = sys.gettrace(), sys.getprofile()
    sys.setprofile(profile)
    sys.settrace(trace)
    try:
        return call()
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
