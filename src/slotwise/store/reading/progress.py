"""The progress of a handler, as its checkpoint says it."""

from __future__ import annotations

from datetime import timedelta

from slotwise.errors import InvalidPayload
from slotwise.model.durations import short_duration
from slotwise.payload.checkpoints import decode_checkpoint


def progress_of(body: bytes | None) -> dict[str, object]:
    """Return the numbers under ``done``, ``total`` and ``rate`` of a checkpoint that is a dict."""
    try:
        value = None if body is None else decode_checkpoint(body)
    except InvalidPayload:
        return {}
    if not isinstance(value, dict):
        return {}
    kinds = {"done": int, "total": int, "rate": float}
    return {
        name: value[name]
        for name, kind in kinds.items()
        if type(value.get(name)) is kind
    }


def told(done: int, total: int | None, rate: float | None) -> str:
    """Return progress as a line, with what is left if that is known."""
    parts = [f"{done:,} done" if total is None else f"{done:,} of {total:,} done"]
    if rate:
        parts.append(f"{rate:,.0f}/s")
    if rate and total is not None and total > done:
        left = timedelta(seconds=(total - done) / rate)
        parts.append(f"about {short_duration(left)} left")
    return ", ".join(parts)
