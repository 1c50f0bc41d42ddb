"""Calls that are declared once: plain in one class, awaited in another."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from types import MethodType
from typing import Concatenate, Generic, ParamSpec, TypeVar, overload

Own = TypeVar("Own")
Inner = TypeVar("Inner")
Given = ParamSpec("Given")
Result = TypeVar("Result")


class Awaited(Generic[Inner]):
    """Awaits the calls of ``inner``: each runs on a thread, and finishes even if it is
    cancelled.
    """

    def __init__(self, inner: Inner) -> None:
        self._inner = inner

    async def _run(
        self, body: Callable[..., Result], *given: object, **named: object
    ) -> Result:
        return await asyncio.to_thread(body, self._inner, *given, **named)


def awaited(
    body: Callable[Concatenate[Inner, Given], Result],
) -> Callable[Concatenate[Awaited[Inner], Given], Coroutine[None, None, Result]]:
    """Return the same call as a coroutine function of the awaited class."""

    @functools.wraps(body)
    async def run(
        self: Awaited[Inner], /, *given: Given.args, **named: Given.kwargs
    ) -> Result:
        return await self._run(body, *given, **named)

    return run


class call(Generic[Own, Given, Result]):  # noqa: N801 - a decorator, as property is
    """Declare a method that a subclass of ``Awaited`` has as a coroutine function.

    Such methods stand in a base class with two subclasses: a plain one, and one that is also
    ``Awaited``. The body always gets the plain object.
    """

    def __init__(self, body: Callable[Concatenate[Own, Given], Result]) -> None:
        self._plain = body
        self._awaited = awaited(body)

    @overload
    def __get__(
        self, own: Awaited[Inner], owner: type
    ) -> Callable[Given, Coroutine[None, None, Result]]: ...
    @overload
    def __get__(
        self, own: None, owner: type
    ) -> Callable[Concatenate[Own, Given], Result]: ...
    @overload
    def __get__(self, own: object, owner: type) -> Callable[Given, Result]: ...
    def __get__(self, own: object, owner: type) -> object:
        found = self._awaited if issubclass(owner, Awaited) else self._plain
        return found if own is None else MethodType(found, own)
