"""What events need of a registry with shards, without importing it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from slotwise import JobRegistry


class Named(Protocol):
    """A shard."""

    @property
    def name(self) -> str: ...


class OfConnections(Protocol):
    """What tells the shard of a connection."""

    def shard_of_connection(self, connection: object) -> str: ...


@runtime_checkable
class Sharded(Protocol):
    """A registry of several shards, each of which has its own registry."""

    @property
    def shards(self) -> Iterable[Named]: ...

    @property
    def sharded(self) -> OfConnections: ...

    def on(self, shard: str) -> JobRegistry: ...
