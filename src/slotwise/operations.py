"""Change what the cluster does: every write of an operator, with its dry run and audit entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotwise.model.exports import late

if TYPE_CHECKING:
    from slotwise.client.operations import Operations
    from slotwise.store.operations.backfill import Backfill
    from slotwise.store.operations.job_operations import Paused, Resumed

_HOMES = {
    "slotwise.client.operations": ("Operations",),
    "slotwise.store.operations.backfill": ("Backfill",),
    "slotwise.store.operations.job_operations": ("Paused", "Resumed"),
}
__all__ = ["Backfill", "Operations", "Paused", "Resumed"]


if not TYPE_CHECKING:
    __getattr__ = late(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
