"""Public modules that import what they publish when it is first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def late(
    module: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], Sequence[str]]]:
    """Return a module's ``__getattr__``, which imports a name from its home when it is first used,
    and its ``__dir__``, which lists its ``__all__``.

    ``homes`` has the public names of each inner module. The name of an inner module is imported
    once; the public module keeps what it found. Type checkers read the imports under
    ``TYPE_CHECKING`` of the public module.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        found: object = getattr(import_module(home_of[name]), name)
        setattr(import_module(module), name, found)
        return found

    return load, lambda: import_module(module).__all__
