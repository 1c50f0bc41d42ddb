"""What an outcome asks of its row and of the ledger, and how it is said where it cannot be written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from slotwise.model.records import Aborted, AttemptOutcome, Cancelled, Claim, Died, Failed, Fence, LedgerKey, Snoozed
from slotwise.store.schema.rows import Held


def tried(held: Held, outcome: AttemptOutcome, claims: Mapping[Fence, Claim]) -> Held:
    """Whoever fails has tried since this claim, if not before."""
    row = held.row
    if not isinstance(outcome, Failed) or row.trying_since is not None:
        return held
    return replace(held, row=replace(row, trying_since=claims[row.fence].claimed_at))


def plainer(outcome: AttemptOutcome, why: str) -> Iterator[AttemptOutcome]:
    """The outcome in letters that every encoding of a database has; then only that it could not be written."""
    if isinstance(outcome, Failed) and not outcome.error.isascii():
        yield replace(outcome, error=outcome.error.encode("ascii", "backslashreplace").decode())
    if isinstance(outcome, Failed | Snoozed | Cancelled):
        yield Failed(why, final=True)


def ledger_key(held: Held, outcome: AttemptOutcome) -> LedgerKey | None:
    """Which ledger row to look at: a slot's own; a one-time task's only where complete_in may have written it."""
    doubtful = isinstance(outcome, Died | Aborted | Cancelled | Snoozed) or getattr(outcome, "promised", False)
    return held.row.history_key if doubtful else held.row.ledger_key


def ledger_keys(ended: Sequence[tuple[Held, AttemptOutcome]]) -> list[LedgerKey]:
    """Those of rows that have one."""
    keys = [ledger_key(held, outcome) for held, outcome in ended]
    return [key for key in keys if key is not None]
