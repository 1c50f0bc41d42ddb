"""One application over several databases, or schemas: shards.

``Shard`` and ``Shards`` say where they are, ``ShardedRegistry`` runs their workers, and its
``sharded`` schedules by shard, connection or key.
"""

from slotwise.contrib.shards.registry import ShardedRegistry
from slotwise.contrib.shards.shard import Shard
from slotwise.contrib.shards.shards import Shards

__all__ = ["Shard", "ShardedRegistry", "Shards"]
