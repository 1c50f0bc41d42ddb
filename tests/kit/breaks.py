"""Break the product at named points: a function or a method is replaced as a whole, for as long as
a test looks. Nothing here depends on the text of the source, or on the file that a function stands
in.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeAlias

#: The arguments of a call, by name.
Arguments: TypeAlias = Any
#: Makes the replacement of what a point was.
Replacement: TypeAlias = Callable[[Any], Any]

PRODUCT = "slotwise"


@dataclass(frozen=True)
class Mutant:
    """The product with one rule broken: each of these points is replaced."""

    breaks: tuple[tuple[Any, Replacement], ...]
    #: Cached functions that would remember what the broken product said.
    caches: tuple[Any, ...] = field(default=(), kw_only=True)

    def __add__(self, other: Mutant) -> Mutant:
        return Mutant(self.breaks + other.breaks, caches=self.caches + other.caches)

    @contextmanager
    def at_large(self) -> Iterator[None]:
        """Every caller gets the replacements."""
        with ExitStack() as stack:
            for cache in self.caches:
                cache.cache_clear()
                stack.callback(cache.cache_clear)
            for point, replacement in self.breaks:
                stack.enter_context(_replaced(point, replacement))
            yield


# -- how a point is broken ------------------------------------------------------------------------


def always(point: Any, value: Any) -> Mutant:
    """The function returns ``value``, and does nothing."""
    return Mutant(((point, lambda original: lambda *_, **__: value),))


def given(point: Any, **changes: Callable[[Arguments], Any]) -> Mutant:
    """The function gets other arguments: for each name, what is made of all arguments."""

    def replacement(original: Any) -> Any:
        signature = inspect.signature(original)

        def broken(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            arguments = SimpleNamespace(**bound.arguments)
            bound.arguments.update(
                {name: change(arguments) for name, change in changes.items()}
            )
            return original(*bound.args, **bound.kwargs)

        return broken

    assert set(changes) <= set(inspect.signature(point).parameters), (
        f"{point} takes no {list(changes)}"
    )
    return Mutant(((point, replacement),))


def answering(point: Any, change: Callable[[Any, Arguments], Any]) -> Mutant:
    """The function returns what ``change`` makes of its result and its arguments."""

    def replacement(original: Any) -> Any:
        signature = inspect.signature(original)

        def broken(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return change(
                original(*args, **kwargs), SimpleNamespace(**bound.arguments)
            )

        return broken

    return Mutant(((point, replacement),))


# -- where a point is found -----------------------------------------------------------------------


@contextmanager
def _replaced(point: Any, replacement: Replacement) -> Iterator[None]:
    name, instead = point.__name__, replacement(point)
    owners = _owners(point)
    assert _put(owners(), name, point, instead), f"nothing refers to {point}"
    try:
        yield
    finally:
        _put(
            owners(), name, instead, point
        )  # also in modules that were imported meanwhile


def _owners(point: Any) -> Callable[[], list[Any]]:
    """A method has one owner; a function is referred to by every module that imported it."""
    path = point.__qualname__.rpartition(".")[0]
    if not path:
        return lambda: [
            module
            for name, module in list(sys.modules.items())
            if module is not None
            and (name == PRODUCT or name.startswith(f"{PRODUCT}."))
        ]
    owner: Any = sys.modules[point.__module__]
    for part in path.split("."):
        owner = getattr(owner, part)
    return lambda: [owner]


def _put(owners: list[Any], name: str, old: Any, new: Any) -> int:
    found = [owner for owner in owners if vars(owner).get(name) is old]
    for owner in found:
        setattr(owner, name, new)
    return len(found)
