"""The process of a keeper, started by path: a few megabytes that sleep.

Importing slotwise the usual way would load SQLAlchemy and the engine for a process that only waits. So its
packages are replaced by empty ones here; what the keeper imports needs nothing but the standard library.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).parent


def main() -> None:
    """Its parameters are those of `keep`."""
    for name, folder in (("slotwise", HERE.parent), ("slotwise.embedded", HERE)):
        package = sys.modules[name] = ModuleType(name)
        package.__path__ = [str(folder)]
    from slotwise.embedded.keeper import keep

    keep(Path(sys.argv[1]), *sys.argv[2:])


if __name__ == "__main__":
    main()
