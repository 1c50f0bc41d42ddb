"""Parts of the sentences in which slots are explained."""

from __future__ import annotations

from datetime import UTC, datetime

from slotwise.explain.facts import Facts
from slotwise.store.schema.audit_rows import Order


def paused_by(facts: Facts) -> str:
    if facts.paused is not None:
        note = f": {facts.paused.note}" if facts.paused.note else ""
        return f"All is paused since {when(facts.paused.since)}, by {facts.paused.author}{note}."
    orders = [order for order in facts.orders if order.command == "pause" and order.job is not None]
    return said(orders[0]) if orders else "The job is paused."


def said(order: Order) -> str:
    what = order.command if order.job is not None else f"{order.command} of all"
    return f"At {when(order.at)} {order.author} gave the order {what}{f': {order.note}' if order.note else ''}."


def when(instant: datetime) -> str:
    text = instant.astimezone(UTC).isoformat(timespec="milliseconds" if instant.microsecond else "seconds")
    return text.replace("+00:00", "Z")


def slots(count: int) -> str:
    return "one slot" if count == 1 else f"{count} slots"
