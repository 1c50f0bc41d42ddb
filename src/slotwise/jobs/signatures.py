"""Calls of what users declare: a wrong argument is a mistake of ours to tell, not Python's."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from slotwise.errors import InvalidJob

Given = ParamSpec("Given")
Made = TypeVar("Made")


def told(name: str) -> Callable[[Callable[Given, Made]], Callable[Given, Made]]:
    """Raise InvalidJob, with what the call named so takes, for arguments that it does not take."""

    def around(function: Callable[Given, Made]) -> Callable[Given, Made]:
        own = inspect.signature(function)
        asked = [one for one in own.parameters.values() if one.name not in ("self", "cls")]
        takes = own.replace(
            parameters=[one.replace(annotation=inspect.Parameter.empty) for one in asked],
            return_annotation=inspect.Signature.empty,
        )

        @functools.wraps(function)
        def call(*given: Given.args, **named: Given.kwargs) -> Made:
            try:
                own.bind(*given, **named)
            except TypeError as error:
                raise InvalidJob(f"{name}: {error}; write {name}{takes}") from None
            return function(*given, **named)

        return call

    return around
