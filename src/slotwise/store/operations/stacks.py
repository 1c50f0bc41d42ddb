"""Ask workers where their handlers are: a row of ``receipts`` is the question, and its answer.

Each worker has one such row. Races: of two who ask at once, each takes an answer that was given
after its question; who finds no row asks again. A worker answers the question that it has read, so
a newer one is answered with the next heartbeat.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from slotwise.model.records import claimed_since
from slotwise.model.values import Value
from slotwise.store.schema.rows import utc
from slotwise.store.schema.tables import Columns, Condition
from slotwise.store.slots.store import Store

#: How long a question without an answer stays.
KEPT = timedelta(minutes=10)
_ASKED = "stack:"
_STACKS = "stacks"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerStack(Value):
    """A handler that runs. ``stack`` has the lines of code that it is in, the innermost last; None
    if its worker has not answered.
    """

    worker: str
    name: str
    id: str
    slot: datetime | None
    attempt: int
    running_since: datetime | None
    token: int
    stack: str | None = None


def held_by(store: Store, name: str, id: str | None) -> list[HandlerStack]:
    """Return what runs of a name, or on a worker with this name, without stacks."""
    tasks = store.tables.tasks.c
    wanted = [tasks.picked, _is_named(tasks, name)]
    if id is not None:
        instance = (tasks.task_instance == id) | (tasks.plan_instance == id)
        wanted.append(instance)
    rows = sa.select(store.tables.tasks).where(*wanted).order_by(tasks.version)
    with store.transaction() as connection:
        found = connection.execute(rows).mappings().all()
    return [_without_stack(row) for row in found]


def _is_named(tasks: Columns, name: str) -> Condition:
    """Whether a row has this name, or its worker has."""
    worker = tasks.picked_by
    of_worker = (worker == name) | worker.startswith(f"{name}:", autoescape=True)
    return (tasks.task_name == name) | of_worker


def _without_stack(row: sa.RowMapping) -> HandlerStack:
    return HandlerStack(
        worker=row["picked_by"] or "–",
        name=row["task_name"],
        id=row["task_instance"],
        slot=utc(row["slot"]),
        attempt=row["attempt"],
        running_since=claimed_since(row["version"]),
        token=row["version"],
    )


class Questions:
    """Questions to workers, and their answers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._receipts = store.tables.receipts

    def ask(self, worker: str) -> None:
        """Ask a worker for its stacks; an answer to an earlier question is dropped."""
        with self._store.transaction() as connection:
            now = self._store.dialect.now(connection)
            values = {"answer": {}, "created": now, "expires": now + KEPT}
            new = {"receipt": _ASKED + worker, **values}
            dialect = self._store.dialect
            dialect.upsert(connection, self._receipts, new, lambda _: values)

    def answers(
        self, workers: Collection[str]
    ) -> dict[str, Sequence[Mapping[str, object]] | None]:
        """Return the stacks of the workers that have a row; None while it has no answer."""
        receipt = self._receipts.c.receipt
        wanted = [_ASKED + worker for worker in workers]
        rows = sa.select(receipt, self._receipts.c.answer).where(receipt.in_(wanted))
        with self._store.transaction() as connection:
            found = connection.execute(rows).all()
        return {key.removeprefix(_ASKED): _stacks_in(answer) for key, answer in found}

    def forget(self, workers: Collection[str]) -> None:
        """Delete the rows of these workers, and those that nobody has asked for lately."""
        receipts = self._receipts
        wanted = [_ASKED + worker for worker in workers]
        mine = receipts.c.receipt.in_(wanted)
        with self._store.transaction() as connection:
            now = self._store.dialect.now(connection)
            is_old = receipts.c.receipt.startswith(_ASKED) & (receipts.c.expires < now)
            connection.execute(receipts.delete().where(mine | is_old))

    def asked_of(self, worker: str) -> datetime | None:
        """Return when this worker was asked; None if it was not, or has answered."""
        mine = self._receipts.c.receipt == _ASKED + worker
        look = sa.select(self._receipts.c.created, self._receipts.c.answer).where(mine)
        with self._store.database.heart.begin() as connection:
            found = connection.execute(look).first()
        is_open = found is not None and _stacks_in(found.answer) is None
        return utc(found.created) if found is not None and is_open else None

    def answer(
        self, worker: str, asked: datetime, stacks: Sequence[Mapping[str, object]]
    ) -> None:
        """Answer the question that this worker has read; a newer one stays open."""
        receipts = self._receipts
        mine = receipts.c.receipt == _ASKED + worker, receipts.c.created == asked
        answer = receipts.update().where(*mine).values(answer={_STACKS: stacks})
        with self._store.database.heart.begin() as connection:
            connection.execute(answer)


def _stacks_in(answer: object) -> Sequence[Mapping[str, object]] | None:
    """Return the stacks that an answer has; those that another program has written are none."""
    found = answer.get(_STACKS) if isinstance(answer, dict) else None
    if not isinstance(found, list):
        return None
    return [one for one in found if isinstance(one, dict)]
