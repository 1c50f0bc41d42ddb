"""Peers that join a run when they are installed, each through its public interface and in its best known setting.

``pip install 'slotwise[bench-peers]'`` brings them. An adapter imports its peer by name when it is used, so that
slotwise itself never needs one.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from importlib.metadata import version

from slotwise.bench.contender import Contender
from slotwise.bench.peers.apscheduler import APScheduler
from slotwise.bench.peers.pgqueuer import PgQueuer
from slotwise.bench.peers.procrastinate import Procrastinate
from slotwise.errors import ConfigurationError

#: Which settings of each take part; what they import.
KNOWN: dict[str, tuple[tuple[str, ...], Sequence[Contender]]] = {
    "pgqueuer": (("pgqueuer", "asyncpg"), (PgQueuer(100), PgQueuer(500))),
    "procrastinate": (("procrastinate",), (Procrastinate(30),)),
    "apscheduler": (("apscheduler",), (APScheduler(),)),
}


def find(names: Iterable[str]) -> tuple[list[Contender], dict[str, str]]:
    """The contenders behind these names, and the versions that are installed. Raises ConfigurationError."""
    contenders: list[Contender] = []
    versions: dict[str, str] = {}
    for name in names:
        if name not in KNOWN:
            raise ConfigurationError(f"--peers {name}: known are {', '.join(KNOWN)}")
        modules, settings = KNOWN[name]
        for module in modules:
            _require(name, module)
            versions[module] = version(module)
        contenders.extend(settings)
    return contenders, versions


def _require(name: str, module: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"--peers {name}: {module} cannot be imported ({error}); pip install 'slotwise[bench-peers]'"
        ) from None
